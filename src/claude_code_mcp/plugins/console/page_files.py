"""The files of the page: in memory, with fixed headers and their own policy. File paths are never built from requests:
names are looked up in a table. The page's policy allows only its own scripts and styles, by hash."""

import base64
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from ...server.web_answers import HEADERS, OTHER_POLICY

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/sw.js": ("sw.js", "text/javascript; charset=utf-8"),
    "/highlighter.js": ("highlighter.js", "text/javascript; charset=utf-8"),
    "/manifest.webmanifest": ("manifest.webmanifest", "application/manifest+json"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/icon-192.png": ("icon-192.png", "image/png"),
    "/icon-512.png": ("icon-512.png", "image/png"),
}
"""By URL path."""
_STATIC = Path(__file__).with_name("static")
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; img-src 'self' data:; "
    "font-src data:; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types claude-code-mcp"
)
_WORKER_POLICY = "default-src 'none'; connect-src 'self'; img-src 'self'"
"""The worker loads the icon of a notification."""


class _InlineParts(HTMLParser):
    """Collects the contents of inline scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: dict[str, list[str]] = {"script": [], "style": []}
        self._inside: str | None = None
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.parts:
            self._inside, self._text = tag, []

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self.parts[tag].append("".join(self._text))
            self._inside = None


def page_policy(html: str) -> str:
    """The Content-Security-Policy of a page with these inline scripts and styles."""
    parser = _InlineParts()
    parser.feed(html.replace("\r\n", "\n"))  # as a browser reads it
    parser.close()
    return _POLICY.format(
        scripts=_hashes(parser.parts["script"]),
        styles=_hashes(parser.parts["style"]),
    )


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    packed: bytes
    headers: Mapping[str, str]
    etag: str


class PageFiles:
    """The files, in memory. Files that were not shipped do not exist."""

    def __init__(self, directory: Path = _STATIC) -> None:
        """Blocks on the disk."""
        self._files = {path: found for path, named in FILES.items() if (found := _read(directory, *named)) is not None}

    def answer(self, request: Request) -> Response:
        """The file at the request's path; 404 if there is none."""
        file = self._files.get(request.url.path)
        if file is None:
            return Response(status_code=404, headers={**HEADERS, "Content-Security-Policy": OTHER_POLICY})
        headers = {**HEADERS, **file.headers, "ETag": file.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if file.etag in (part.strip() for part in request.headers.get("if-none-match", "").split(",")):
            return Response(status_code=304, headers=headers)
        if _takes_gzip(request.headers.get("accept-encoding", "")) and len(file.packed) < len(file.content):
            return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(file.content, headers=headers)


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.lower().split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _read(directory: Path, name: str, media_type: str) -> _File | None:
    try:
        content = (directory / name).read_bytes()
    except FileNotFoundError:
        return None
    policy = _WORKER_POLICY if name == "sw.js" else OTHER_POLICY
    if name == "index.html":
        policy = page_policy(content.decode())
    headers = {"Content-Type": media_type, "Content-Security-Policy": policy}
    digest = hashlib.sha256(content).hexdigest()[:32]
    return _File(content, gzip.compress(content, 9, mtime=0), headers, f'"{digest}"')
