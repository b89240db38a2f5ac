"""What unknown secrets look like: tokens of well-known services, private keys, credentials in usual places.

Linear in the length of the text. Each pattern is tried only where a literal part of it occurs; it either fails after a
bounded number of characters, or what it has looked at cannot be looked at again from another start. Possessive
quantifiers (`++`, `*+`) keep it from going back.
"""

import re
from collections.abc import Callable

MARK = "[redacted]"

Hide = Callable[[str], str]


def _whole_match(pattern: str) -> Hide:
    compiled = re.compile(pattern)
    return lambda text: compiled.sub(MARK, text)


def _after_group(pattern: str) -> Hide:
    """Hides what the pattern matches behind its first group."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return lambda text: compiled.sub(rf"\g<1>{MARK}", text)


# A run of such characters ends at the same place from whatever position in it a match begins. Whether the rest of the
# pattern follows there is the same for the whole run, so that the run is skipped in one go if it does not.
_JWT = re.compile(r"\beyJ[\w-]{8,}+(\.[\w-]{4,}+\.[\w-]*+)?")
_COOKIE = re.compile(
    r"((?:set-)?cookie[\\\"']{0,4}+\s*+:\s*+[\\\"']{0,4}+)[^\s\"'\\;=]++(=[^\r\n\"'\\]*+)?", re.IGNORECASE
)
_AUTHORITY = re.compile(r"://([^\s/\"'<>]++)")
_SCHEME_END = re.compile(r"[A-Za-z0-9+.-]")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,64}PRIVATE KEY(?: BLOCK)?-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,64}PRIVATE KEY(?: BLOCK)?-----")


def _jwts(text: str) -> str:
    return _JWT.sub(lambda found: MARK if found[1] else found[0], text)


def _cookies(text: str) -> str:
    return _COOKIE.sub(lambda found: found[1] + MARK if found[2] else found[0], text)


def _credentials_in_addresses(text: str) -> str:
    """`scheme://user:password@host`: all up to the last `@` before the path, since a password may have one in it."""

    def hidden(found: re.Match[str]) -> str:
        before = text[found.start() - 1 : found.start()] if found.start() else ""
        _, at, host = found[1].rpartition("@")
        return f"://{MARK}@{host}" if at and _SCHEME_END.fullmatch(before) else found[0]

    return _AUTHORITY.sub(hidden, text)


def _private_keys(text: str) -> str:
    """From the first line of a key to its last; to the end of the text, or other dashes, if that is missing."""
    parts, reached = [], 0
    while (begins := _KEY_BEGINS.search(text, reached)) is not None:
        dashes = text.find("-----", begins.end())
        stop = len(text) if dashes < 0 else dashes
        ends = _KEY_ENDS.match(text, stop)
        parts += [text[reached : begins.start()], MARK]
        reached = ends.end() if ends else stop
    return "".join((*parts, text[reached:]))


_QUOTES = r"[\\\"']{0,4}+"
_SCHEMES = r"(?:(?:bearer|basic|token|digest|apikey|negotiate)\s++)?+"
_OPAQUE = r"[A-Za-z0-9+/=_.~-]"

_SHAPES: tuple[tuple[tuple[str, ...], Hide], ...] = (
    (("-----begin ",), _private_keys),
    (("sk-",), _whole_match(r"\bsk-(?:ant-[\w-]{6,}+|[A-Za-z0-9_-]{20,}+)")),
    (("k_live_", "k_test_"), _whole_match(r"\b[srp]k_(?:live|test)_\w{10,}+")),
    (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        _whole_match(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}+|github_pat_\w{20,}+)"),
    ),
    (("glpat-",), _whole_match(r"\bglpat-[\w-]{16,}+")),
    (("xox", "xapp-"), _whole_match(r"\b(?:xox[a-z]|xapp)-[\w-]{10,}+")),
    (("akia", "asia"), _whole_match(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}(?![A-Za-z0-9_-])")),
    (("aiza",), _whole_match(r"\bAIza[\w-]{30,}+")),
    (("ya29.",), _whole_match(r"\bya29\.[\w-]{20,}+")),
    (("npm_", "hf_", "dop_v1_"), _whole_match(r"\b(?:npm|hf|dop_v1)_[A-Za-z0-9]{20,}+")),
    (("pypi-",), _whole_match(r"\bpypi-[\w-]{40,}+")),
    (("sg.",), _whole_match(r"\bSG\.[\w-]{16,}+\.[\w-]{16,}+")),
    (("eyj",), _jwts),
    (
        ("authorization",),
        _after_group(rf"(authorization{_QUOTES}\s*+[:=]\s*+{_QUOTES}{_SCHEMES})[A-Za-z0-9+/=_.~:-]{{4,}}+"),
    ),
    # Ordinary words may follow these two; a token is long, or has a character that a word has not.
    (("bearer",), _after_group(rf"(\bbearer\s++)(?:{_OPAQUE}{{12,}}+|(?=[A-Za-z.-]*+[0-9+=_~]){_OPAQUE}{{4,}}+)")),
    (("basic",), _after_group(rf"(\bbasic\s++)(?=[a-z.-]*+[0-9+=_~]|(?-i:[A-Za-z]*[a-z][A-Z])){_OPAQUE}{{4,}}+")),
    (
        ("-api-key", "-api-token"),
        _after_group(rf"(x-(?:goog-)?api-(?:key|token){_QUOTES}\s*+:\s*+{_QUOTES})(?!\[redacted\])[^\s\"'\\,;]{{4,}}+"),
    ),
    (("cookie",), _cookies),
    (("://",), _credentials_in_addresses),
    (
        ("token=", "key=", "secret=", "password=", "sig=", "signature="),
        _after_group(
            r"([?&#](?:[a-z_-]*(?:token|key|secret)|password|sig|signature)=)(?!\[redacted\])[^\s&#\"'<>]{4,}+"
        ),
    ),
)
# A streamed message is a dozen short texts, and hardly any of them needs more than this one look.
_LANDMARKS = tuple(landmark for landmarks, _ in _SHAPES for landmark in landmarks)


def hide_shapes(text: str) -> str:
    """The text with a mark in place of everything that looks like a secret."""
    # Plain loops instead of `any`: this runs for every text of every message.
    lowered = text.lower()
    for landmark in _LANDMARKS:
        if landmark in lowered:
            break
    else:
        return text
    for landmarks, hide in _SHAPES:
        for landmark in landmarks:
            if landmark in lowered:
                text = hide(text)
                break
    return text
