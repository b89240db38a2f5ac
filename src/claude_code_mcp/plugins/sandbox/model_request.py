"""The requests that a sandboxed session may send to the model's API. Pure.

The API does more than answer: it fetches images and documents by URL, connects to MCP servers, searches the web and
runs programs. With the operator's key, a request could use all of that to reach what the sandbox cannot. Therefore a
request is rebuilt from the fields listed here and refused with the name of the first other field. The lists are what
Claude Code since 2.1.0 sends to the API and to gateways, recorded on a scripted model, and what its programs contain.
Operators add names for newer versions with `CLAUDE_CODE_MCP_MODEL_FEATURES`.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_BODY = 32 << 20
"""Maximum size of a request in bytes, as in the API."""
MAX_VALUES = 2_000_000
"""Maximum number of commas and opening brackets in a request, including those in texts: each may stand for a value. A
body of `MAX_BODY` bytes can contain enough values to use a gigabyte of memory and block the whole server for
seconds."""

BETAS = frozenset(
    {
        *("adaptive-thinking-2026-01-28", "advanced-tool-use-2025-11-20", "afk-mode-2026-01-31"),
        *("auto-mode-classifier-2026-07-16", "cache-diagnosis-2026-04-07", "cache-keepalive-2026-09-03"),
        *("claude-code-20250219", "claude-code-side-query-2026-09-29", "compact-2026-01-12", "compact-2026-09-04"),
        *("context-1m-2025-08-07", "context-hint-2026-04-09", "context-management-2025-06-27"),
        *("dangerous-tool-use-2026-09-03", "effort-2025-11-24", "extended-cache-ttl-2025-04-11"),
        *("fallback-credit-2026-06-01", "fallback-credit-2026-07-01", "fast-mode-2026-02-01"),
        *("fine-grained-tool-streaming-2025-05-14", "inline-tools-2026-09-15", "interleaved-thinking-2025-05-14"),
        *("mid-conversation-output-config-2026-07-01", "mid-conversation-system-2026-04-07"),
        *("mid-conversation-system-clear-at-2026-08-21", "mid-conversation-tool-changes-2026-07-01"),
        *("oauth-2025-04-20", "per-turn-control-2026-07-01", "program-use-case-ids-2026-09-17"),
        *("prompt-caching-2024-07-31", "prompt-caching-evict-2026-05-12", "prompt-caching-scope-2026-01-05"),
        *("redact-thinking-2026-02-12", "request-tags-2026-08-21", "server-side-fallback-2026-06-01"),
        *("server-side-fallback-2026-07-01", "structured-outputs-2025-09-17", "structured-outputs-2025-11-13"),
        *("structured-outputs-2025-12-15", "summarize-connector-text-2026-03-13", "task-budgets-2026-03-13"),
        "thinking-binding-controls-2026-08-01",
        *("thinking-display-updates-2026-08-18", "thinking-resumption-2026-07-17", "thinking-token-count-2026-05-13"),
        *("timing-2026-09-09", "token-counting-2024-11-01", "tool-examples-2025-10-29", "tool-provenance-2026-10-26"),
        *("tool-search-tool-2025-10-19", "web-search-2025-03-05"),
    }
)
"""Accepted values of `anthropic-beta`. Excluded: files, skills, MCP, code execution, web fetch, stored threads and
memory, managed agents, batches."""

SERVER_TOOLS: Mapping[str, re.Pattern[str]] = {"web_search": re.compile(r"web_search_\d{8}")}
"""Tools that run at the provider and that a profile can allow (`server_tools`), with their types."""

_TOKEN = re.compile(rb"[\w.,:;/+-]{1,128}", re.ASCII)
_LIST = re.compile(rb"[\w.,:;/+ -]{1,128}", re.ASCII)
_TEXT = re.compile(rb"[\x20-\x7e]{1,512}")
_HEADERS: Mapping[bytes, re.Pattern[bytes]] = {
    **dict.fromkeys((b"accept", b"user-agent"), _TEXT),
    **dict.fromkeys(
        (
            *(b"anthropic-dangerous-direct-browser-access", b"anthropic-version", b"x-app", b"x-client-request-id"),
            b"x-anthropic-additional-protection",
            # The software that sent the request
            *(b"x-stainless-lang", b"x-stainless-package-version", b"x-stainless-os", b"x-stainless-arch"),
            *(b"x-stainless-runtime", b"x-stainless-runtime-version", b"x-stainless-retry-count"),
            *(b"x-stainless-timeout", b"x-stainless-helper-method"),
            # The purpose of the request
            *(b"x-claude-code-session-id", b"x-claude-code-agent-id", b"x-claude-code-parent-agent-id"),
            *(b"x-claude-code-agent-type", b"x-claude-code-prompt-id", b"x-claude-code-request-class"),
            *(b"x-claude-1p-request-class", b"x-claude-code-auxiliary-type", b"x-claude-code-compaction"),
            *(b"x-claude-code-context-compacted", b"x-cc-context-compacted", b"x-cc-compaction-request"),
        ),
        _TOKEN,
    ),
    b"x-stainless-helper": _LIST,
    b"x-claude-code-prev-tool-durations": re.compile(rb"[\x20-\x7e]{1,4096}"),
}
"""Forwarded headers and their accepted values. Headers with another value are dropped."""
CREDENTIAL_HEADERS = frozenset({b"authorization", b"x-api-key"})


class RequestNotAllowed(Exception):
    """A request that is not sent; the text names the part and the reason."""


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """What an operator allows in addition to this module's lists."""

    server_tools: frozenset[str] = frozenset()
    """Names in `SERVER_TOOLS`."""
    features: frozenset[str] = frozenset()
    """Values of `anthropic-beta`, and names of headers and of fields of requests and content blocks."""


NOTHING_MORE = ModelAccess()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that may be sent."""

    body: bytes
    model: str = ""
    max_tokens: int = 0
    """The maximum length of the answer."""


# -- headers ----------------------------------------------------------------------------------------------------------


def allowed_headers(headers: Iterable[tuple[bytes, bytes]], access: ModelAccess) -> list[tuple[bytes, bytes]]:
    """The headers to forward, including credentials; others are dropped. Raises RequestNotAllowed for an unknown beta,
    because dropping it would change the meaning of the request. Names are in lower case."""
    kept = []
    for name, value in headers:
        if name == b"anthropic-beta":
            _check_betas(value.decode("latin-1"), access)
        elif name not in CREDENTIAL_HEADERS:
            further = _TEXT if name.decode("latin-1") in access.features else None
            allowed = _HEADERS.get(name, further)
            if allowed is None or not allowed.fullmatch(value):
                continue
        kept.append((name, value))
    return kept


def _check_betas(value: str, access: ModelAccess) -> None:
    names = {name.strip() for name in value.split(",")} - {""}
    unknown = sorted(names - BETAS - access.features)
    if unknown:
        raise RequestNotAllowed(f"anthropic-beta: {unknown[0][:100]!r} is not allowed in a sandbox. {_ADD}")


_ADD = "If Claude Code itself needs it, the operator adds its name to CLAUDE_CODE_MCP_MODEL_FEATURES."


# -- bodies -----------------------------------------------------------------------------------------------------------


def rebuilt_request(data: bytes, access: ModelAccess) -> ModelRequest:
    """The request rebuilt from known fields. RequestNotAllowed names the first unknown field, or the first that makes
    the API fetch something."""
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise RequestNotAllowed("The body holds too many values.")
    try:
        body = json.loads(data, parse_constant=_no_constant)
        rebuilt = _Rebuilder(access).request(body)
        text = json.dumps(rebuilt, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        raise RequestNotAllowed("The body is not a valid JSON object.") from None
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can express
        encoded = json.dumps(rebuilt, allow_nan=False, separators=(",", ":")).encode()
    most = rebuilt.get("max_tokens")
    return ModelRequest(encoded, str(rebuilt.get("model", "")), most if isinstance(most, int) and most > 0 else 0)


def _no_constant(name: str) -> None:
    raise ValueError(name)


Check = Callable[[Any, str], Any]
"""Takes a value and its place in the request; returns the value to send. Raises RequestNotAllowed."""


def _data(value: Any, _: str) -> Any:
    """A value that the API passes to the model or uses as a setting, without interpreting URLs in it."""
    return value


def _text(value: Any, where: str) -> Any:
    if value is not None and not isinstance(value, str):
        raise RequestNotAllowed(f"{where} must be a string.")
    return value


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, dict | list):
        raise RequestNotAllowed(f"{where} must be a string, a number or a boolean.")
    return value


def _whole_number(value: Any, where: str) -> Any:
    """The estimate for an unfinished answer needs a number; the API may also accept a string."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestNotAllowed(f"{where} must be an integer.")
    return value


# `speed` is excluded: the fast mode costs up to six times the price of the model.
_SETTINGS = (
    *("compaction", "diagnostics", "fallback_credit_token", "inference_geo"),
    *("metadata", "output_config", "output_format", "safeguards"),
    *("service_tier", "stop_sequences", "stream", "temperature", "thinking", "tool_choice", "top_k", "top_p"),
)
_CACHE_CONTROL = ("type", "ttl", "scope", "evict_on_complete")
_CONTEXT_EDIT = (
    *("type", "trigger", "keep", "clear_at_least", "exclude_tools", "clear_tool_inputs"),
    *("instructions", "pause_after_compaction"),
)
_FALLBACK = ("max_tokens", "output_config", "thinking")
"""Settings of a fallback model."""
_CUSTOM_TOOL = (
    *("type", "name", "description", "input_schema", "input_examples", "defer_loading"),
    *("eager_input_streaming", "strict", "allowed_callers"),
)
_SERVER_TOOL = (
    *("type", "name", "max_uses", "allowed_domains", "blocked_domains", "user_location", "strict", "defer_loading"),
)
_PLAIN_BLOCKS: Mapping[str, tuple[str, ...]] = {
    "text": ("citations",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input", "caller"),
    "tool_reference": ("tool_name",),
    "fallback": ("from", "to", "trigger"),
    "image": ("transformations",),
    "document": ("citations",),
    "search_result": ("citations",),
    "tool_result": ("tool_use_id", "is_error"),
    "compaction": ("encrypted_content", "signature"),
}
"""Fields of content blocks that contain only data."""
_SERVER_BLOCKS = {
    "server_tool_use": ("id", "input", "caller"),
    "web_search_tool_result": ("tool_use_id", "content", "caller"),
}
"""Fields of an answer for which the provider searched the web."""
_SOURCES = {
    "base64": ("type", "media_type", "data"),
    "text": ("type", "media_type", "data"),
}


@dataclass(frozen=True, slots=True)
class _Rebuilder:
    access: ModelAccess

    def request(self, body: Any) -> dict[str, Any]:
        fields = {
            **dict.fromkeys(_SETTINGS, _data),
            "cache_control": self._cache_control,
            "context_management": self._context_management,
            "model": _text,
            "max_tokens": _whole_number,
            "fallbacks": self._fallbacks,
            "messages": self._list(self._message),
            "system": self._content(self._text_only),
            "tools": self._list(self._tool),
        }
        return self._object(body, "", fields)

    # -- shapes -----------------------------------------------------------------------------------------------

    def _object(self, value: Any, where: str, fields: Mapping[str, Check]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise RequestNotAllowed(f"{where or 'The body'} must be an object.")
        rebuilt = {}
        for name, part in value.items():
            shown = name[:100] if name.isprintable() else repr(name[:100])  # it appears in the log
            place = f"{where}.{shown}" if where else shown
            check = fields.get(name) or (_data if name in self.access.features else None)
            if check is None:
                raise RequestNotAllowed(f"{place} is not allowed in a sandbox. {_ADD}")
            rebuilt[name] = check(part, place)
        return rebuilt

    def _list(self, check: Check) -> Check:
        def check_all(value: Any, where: str) -> Any:
            if value is None:
                return None
            if not isinstance(value, list):
                raise RequestNotAllowed(f"{where} must be a list.")
            return [check(part, f"{where}[{number}]") for number, part in enumerate(value)]

        return check_all

    def _content(self, block: Check) -> Check:
        """Text, or a list of content blocks."""

        def check(value: Any, where: str) -> Any:
            return value if isinstance(value, str) else self._list(block)(value, where)

        return check

    # -- parts ------------------------------------------------------------------------------------------------

    def _cache_control(self, value: Any, where: str) -> Any:
        return None if value is None else self._object(value, where, dict.fromkeys(_CACHE_CONTROL, _plain))

    def _context_management(self, value: Any, where: str) -> Any:
        return None if value is None else self._object(value, where, {"edits": self._list(self._context_edit)})

    def _context_edit(self, value: Any, where: str) -> Any:
        return self._object(value, where, dict.fromkeys(_CONTEXT_EDIT, _data))

    def _server_tool_name(self, value: Any, where: str) -> Any:
        """If a message ends with such a block, the API runs the tool."""
        if not isinstance(value, str) or value not in self.access.server_tools:
            raise RequestNotAllowed(f"{where}: the tool {str(value)[:100]!r} runs outside the sandbox.")
        return value

    def _fallbacks(self, value: Any, where: str) -> Any:
        """`"default"`, or models with settings. Tools and servers are not accepted here."""
        if isinstance(value, str):
            return value
        return self._list(self._fallback)(value, where)

    def _fallback(self, value: Any, where: str) -> Any:
        fields = {**dict.fromkeys(_FALLBACK, _data), "model": _text, "max_tokens": _whole_number}
        return self._object(value, where, fields)

    def _message(self, value: Any, where: str) -> Any:
        settings = dict.fromkeys(("role", "clear_at", "output_config"), _data)
        return self._object(value, where, {**settings, "content": self._content(self._block)})

    def _tool(self, value: Any, where: str) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        cached = {"cache_control": self._cache_control}
        if kind is None or kind == "custom":
            return self._object(value, where, {**dict.fromkeys(_CUSTOM_TOOL, _data), **cached})
        for name in self.access.server_tools:
            if isinstance(kind, str) and SERVER_TOOLS[name].fullmatch(kind):
                return self._object(value, where, {**dict.fromkeys(_SERVER_TOOL, _data), **cached})
        listed = next((name for name in SERVER_TOOLS if SERVER_TOOLS[name].fullmatch(str(kind))), None)
        hint = f' The operator can allow it with server_tools = ["{listed}"] in the profile.' if listed else ""
        raise RequestNotAllowed(f"{where}: the tool {str(kind)[:100]!r} runs outside the sandbox.{hint}")

    def _block(self, value: Any, where: str) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        fields = self._fields(kind) if isinstance(kind, str) else None
        if fields is None:
            raise RequestNotAllowed(f"{where}: content of type {str(kind)[:100]!r} is not allowed in a sandbox.")
        return self._object(value, where, {"type": _data, "cache_control": self._cache_control, **fields})

    def _fields(self, kind: str) -> dict[str, Check] | None:
        """The accepted fields of a content block of this type; None for an unknown type."""
        plain = {**_PLAIN_BLOCKS, **(_SERVER_BLOCKS if self.access.server_tools else {})}
        fields: dict[str, Check] = dict.fromkeys(plain.get(kind, ()), _data)
        checked: Mapping[str, Mapping[str, Check]] = {
            "text": {"text": _text},
            "server_tool_use": {"name": self._server_tool_name},
            "image": {"source": self._source},
            "document": {"source": self._source, "title": _text, "context": _text},
            "search_result": {"content": self._list(self._text_only), "title": _text, "source": _text},
            "tool_result": {"content": self._content(self._result_block)},
            "compaction": {"content": _text, "tool_changes": self._list(self._block)},
            "tool_addition": {"tool": self._changed_tool},
            "tool_removal": {"tool": self._changed_tool},
        }
        known = kind in plain or (kind in checked and kind not in _SERVER_BLOCKS)
        return {**fields, **checked.get(kind, {})} if known else None

    def _text_only(self, value: Any, where: str) -> Any:
        if isinstance(value, dict) and value.get("type") != "text":
            raise RequestNotAllowed(f"{where} must be text.")
        return self._block(value, where)

    def _result_block(self, value: Any, where: str) -> Any:
        kinds = ("text", "image", "document", "search_result", "tool_reference")
        if isinstance(value, dict) and value.get("type") not in kinds:
            raise RequestNotAllowed(f"{where}: a tool result cannot hold {str(value.get('type'))[:100]!r}.")
        return self._block(value, where)

    def _changed_tool(self, value: Any, where: str) -> Any:
        """A tool that is added or removed during a conversation: by name, or with its definition."""
        kind = value.get("type") if isinstance(value, dict) else None
        if kind == "tool_reference":
            return self._object(value, where, dict.fromkeys(("type", "name"), _data))
        if kind == "tool_definition":
            return self._object(value, where, {"type": _data, "definition": self._tool})
        raise RequestNotAllowed(f"{where}: a tool of type {str(kind)[:100]!r} is not allowed in a sandbox.")

    def _source(self, value: Any, where: str) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind in _SOURCES:
            return self._object(value, where, dict.fromkeys(_SOURCES[kind], _data))
        if kind == "content":
            return self._object(value, where, {"type": _data, "content": self._content(self._source_block)})
        raise RequestNotAllowed(
            f"{where}: a source of type {str(kind)[:100]!r} is not allowed in a sandbox: the API would fetch it. Send "
            "the content itself (base64)."
        )

    def _source_block(self, value: Any, where: str) -> Any:
        source = value.get("source") if isinstance(value, dict) else None
        if isinstance(source, dict) and source.get("type") == "content":
            raise RequestNotAllowed(f"{where} cannot hold another document.")
        return self._block(value, where)
