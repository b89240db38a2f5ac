"""`stats`: the metrics of a running server."""

import argparse
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..client.connections import ask_shared
from ..client.conventions import Unavailable, add_json, print_json, table
from ..core.errors import InvalidArgument, PermissionDenied
from ..core.model.text import size_of

_PREFIX = "claude_code_mcp_"
_TIMEOUT = 10.0
_MAX_BYTES = 10 << 20


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "stats",
        help="show the metrics of a running server",
        description="Reads the metrics of your shared server or, with an address, from /metrics of a server that "
        "runs with --http. The token is read from CLAUDE_CODE_MCP_METRICS_TOKEN, or from "
        "CLAUDE_CODE_MCP_TOKEN.",
    )
    parser.add_argument(
        "where", nargs="?", metavar="HOST:PORT", help="address or URL of the server (default: the shared server)"
    )
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--raw", action="store_true", help="print the Prometheus text format")
    add_json(formats, "print a list of samples with name, labels and value as JSON")
    parser.set_defaults(run=_run_stats)


def _run_stats(arguments: argparse.Namespace) -> int:
    text = _fetch(_metrics_url(arguments.where)) if arguments.where else ask_shared(os.environ, "metrics")
    if not isinstance(text, str):
        raise Unavailable("No shared server is running: pass the HOST:PORT of a server that runs with --http.")
    if arguments.raw:
        print(text, end="")
        return 0
    samples = list(_samples(text))
    if arguments.json:
        print_json([sample._asdict() for sample in samples])
        return 0
    rows = []
    for sample in samples:
        labels = " ".join(f"{name}={value}" for name, value in sample.labels.items())
        name = sample.name.removeprefix(_PREFIX).removesuffix("_total")
        rows.append((f"{name} {labels}".strip(), _formatted(sample)))
    print("".join(f"{line}\n" for line in table(rows)), end="")
    return 0


def _metrics_url(where: str) -> str:
    base = where if where.startswith(("http://", "https://")) else f"http://{where}"
    return base.removesuffix("/").removesuffix("/mcp").removesuffix("/metrics") + "/metrics"


def _fetch(url: str) -> str:
    """The body of the response. Raises InvalidArgument for an invalid address, Unavailable for every failure."""
    token = os.environ.get("CLAUDE_CODE_MCP_METRICS_TOKEN") or os.environ.get("CLAUDE_CODE_MCP_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http or https, see _metrics_url
        # No proxy and no redirect: the token must reach only the named server.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        with opener.open(request, timeout=_TIMEOUT) as response:
            return str(response.read(_MAX_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        error.close()
        hint = " Set CLAUDE_CODE_MCP_METRICS_TOKEN or CLAUDE_CODE_MCP_TOKEN." if error.code == 401 else ""
        kind = PermissionDenied if error.code in (401, 403) else Unavailable
        raise kind(f"{url} answered {error.code}.{hint}") from None
    except (ValueError, OverflowError, http.client.HTTPException) as error:
        raise InvalidArgument(f"{url!r} is not an address: {error}") from None
    except OSError as error:
        raise Unavailable(f"{url} cannot be reached: {getattr(error, 'reason', error)}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the token must be sent only to the named server."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _Sample(NamedTuple):
    """One value of the metrics, under its full name."""

    name: str
    labels: dict[str, str]
    value: float


def _samples(text: str) -> Iterator[_Sample]:
    """Every sample but the buckets of histograms."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only this command needs it

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                yield _Sample(sample.name, sample.labels, sample.value)


def _formatted(sample: _Sample) -> str:
    value = sample.value
    if sample.name.endswith("_bytes"):
        return size_of(value)
    if "_usd" in sample.name:
        return f"${value:.4f}"
    return f"{value:g}" if value == int(value) and abs(value) < 1e6 else f"{value:,.3f}".rstrip("0").rstrip(".")
