"""Redacts secrets in text that leaves the server: known secrets, and everything shaped like one.

The only redactor of the package, with one mark and one set of rules. Its time is linear in the length of the text,
whatever the text is: no pattern tries the same characters from many starting points. Redacting twice changes nothing.
Redact before shortening; a known secret that was truncated by a length limit is still recognized at the cut. A known
secret is recognized in every usual escape (`json_text.py`), also in one within another.

Shapes of secrets (`hide_shapes`): each pattern is tried only where a literal part of it occurs; it either fails after a
bounded number of characters, or consumes characters that no other match attempt examines again. Possessive quantifiers
(`++`, `*+`) keep it from going back.
"""

import html
import json
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

from .json_text import UnescapedText, unescaped

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
    # Ordinary words may follow these two; a token is long, or contains a character that words do not.
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
# A streamed message is a dozen short texts, and hardly any of them needs more than this single check.
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


# -- known secrets ----------------------------------------------------------------------------------------------------

MIN_LENGTH = 8
"""A shorter value would take ordinary words with it."""
MIN_LENGTH_PER_SERVER = 4
"""In what one server of the hub says, its own short secrets are rarely mistaken for other words."""
_MIN_LINE = 16
_MAX_RETIRED = 1000
_MAX_RETIRED_CHARACTERS = 1 << 20
_MAX_DEPTH = 200
_MAX_CACHED_KEYS = 1000
_MAX_CACHED_VALUES = 4096
_HARMLESS = frozenset({bool, int, float})
_MAX_CACHED_KEY = 100
_CUT_MARKS = ("…", "\n…", "...", "[[claude-code-mcp cut ")
"""What stands behind a text that was cut; the last is the mark of `model.text.cut`."""

_SPECIAL = re.compile(r"[^A-Za-z0-9]")
"""Characters that one escape or another changes."""
_NAMED = re.compile(
    r"(?:^|[_-])(?:KEY|APIKEY|TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIAL|CREDENTIALS|COOKIE|AUTH|"
    r"PAT|DSN|WEBHOOK|SIGNATURE)(?:$|[_-](?!FILE|PATH|DIR|SOCK|URL|ID|NAME|TYPE|HELPER|TTL))|"
    r"(?:API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)[_-]?KEY$|PASSWORD$|SECRET$|TOKEN$",
    re.IGNORECASE,
)
_HINTED = re.compile(
    r"auth(?!or(?!i[sz]))|token|secret|password|passwd|credential|cookie|webhook|api[-_]?key|(?:\b|_)key\b",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"(?:FILE|PATH|DIR|SOCK|URL|NAME|TYPE|HELPER|TTL)$|(?:MAX|MIN|LIMIT|BUDGET|OUTPUT|INPUT|THINKING|COUNT).*TOKENS",
    re.IGNORECASE,
)
_HINTS = ("key", "token", "secret", "pass", "credential", "cookie", "auth", "pat", "dsn", "webhook", "signature")
_SECRET_FIELDS = frozenset(
    {
        *("authorization", "proxyauthorization", "xapikey", "apikey", "cookie", "setcookie", "privatekey"),
        *("password", "passwd", "clientsecret", "accesstoken", "refreshtoken"),
    }
)


class Redactor:
    """Learns secrets and removes them from text. Thread-safe: secrets may be added at any time, from any thread.

    A secret learned for an owner is known as long as the owner exists; one without an owner is known permanently.
    Secrets of living owners are never dropped and unlimited: the owner holds them in memory anyway. Of former owners,
    the latest 1,000 secrets (1 MiB together) stay known; the oldest are forgotten first.
    """

    def __init__(self, known_secrets: Iterable[str] = (), *, shortest: int = MIN_LENGTH) -> None:
        self._shortest = shortest
        self._known: tuple[tuple[str, str], ...] = ()
        self._escapable: tuple[tuple[str, str, str], ...] = ()
        """Those with a character that may be escaped, without their escapes, each with its head, and with the longest
        part of that which no usual escape changes."""
        self._plain: dict[str, str] = {}
        """Each known secret without escapes."""
        self._spelled: tuple[tuple[str, ...], frozenset[str]] | None = None
        self._keys: dict[str, tuple[str, bool]] = {}
        self._clean: set[str] = set()
        self._lock = threading.Lock()
        self._for_good: dict[str, None] = {}
        self._held: dict[int, set[str]] = {}
        self._holders: Counter[str] = Counter()
        self._retired: dict[str, None] = {}
        self._gone: deque[int] = deque()
        self.add(known_secrets)

    # -- learning ---------------------------------------------------------------------------------------------

    def add(self, secrets: Iterable[str], owner: object | None = None) -> None:
        """Learns secrets as such, whatever they look like, for as long as the owner exists."""
        learned = {
            part: None
            for secret in map(str.strip, secrets)
            if len(secret) >= self._shortest and secret not in MARK
            for part in _parts(secret)
        }
        with self._lock:
            # Before `_hold`: the new owner may have the address of a former one, and its secrets would be retired with
            # that.
            changed = self._retire()
            if owner is None:
                changed |= not learned.keys() <= self._for_good.keys()
                self._for_good |= learned
            elif learned:
                changed |= self._hold(owner, learned)
            if changed:
                self._arrange()

    def learn(self, environment: Mapping[str, str], owner: object | None = None) -> None:
        """Learns the values of variables whose names say that they are secret."""
        self.add(
            (value for name, value in environment.items() if is_secret_name(name) and not _is_placeholder(value)), owner
        )

    def learn_from(self, data: Any, owner: object | None = None) -> None:
        """Learns from options: variables, headers, arguments and addresses, wherever in them they are."""
        self.add(secrets_in(data), owner)

    def _hold(self, owner: object, secrets: Iterable[str]) -> bool:
        held = self._held.get(id(owner))
        if held is None:
            held = self._held[id(owner)] = set()
            # Runs whenever the owner is collected, even while the lock is held, so it only records the fact.
            weakref.finalize(owner, self._gone.append, id(owner)).atexit = False
        new = [secret for secret in secrets if secret not in held]
        held.update(new)
        self._holders.update(new)
        for secret in new:
            self._retired.pop(secret, None)
        return bool(new)

    def _retire(self) -> bool:
        """Retires the secrets of owners that are gone; returns whether any was forgotten permanently."""
        while self._gone:
            for secret in self._held.pop(self._gone.popleft(), ()):
                self._holders[secret] -= 1
                if not self._holders[secret]:
                    del self._holders[secret]
                    self._retired[secret] = None
        # Bounded by both: many short secrets cost time, and a few long ones memory.
        characters = sum(map(len, self._retired))
        forgotten = False
        while len(self._retired) > _MAX_RETIRED or characters > _MAX_RETIRED_CHARACTERS:
            oldest = next(iter(self._retired))
            del self._retired[oldest]
            characters -= len(oldest)
            forgotten = True
        return forgotten

    def _arrange(self) -> None:
        secrets = {**self._for_good, **self._holders, **self._retired}
        # A secret may be part of another one, so the longest go first. Readers take no lock: each attribute is
        # replaced as a whole.
        self._known = tuple((_head(secret), secret) for secret in sorted(secrets, key=len, reverse=True))
        self._spelled = None
        self._plain = {secret: self._plain.get(secret) or unescaped(secret) for secret in secrets}
        plain = {secret for secret in self._plain.values() if len(secret) >= self._shortest and _SPECIAL.search(secret)}
        self._escapable = tuple(
            (_longest_word(_head(secret)), _head(secret), secret) for secret in sorted(plain, key=len, reverse=True)
        )
        # After the secrets: a text found to be clean with the old secrets must not be cached for the new ones.
        self._keys = {}
        self._clean = set()

    # -- hiding -----------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """The text without secrets."""
        # Almost no text contains a secret: exact positions are searched only after the start of a secret is found.
        for head, _ in self._known:
            if head in text:
                text = self._without_known(text)
                break
        for word, _, _ in self._escapable:
            if word in text:
                text = self._without_escaped(text)
                break
        return hide_shapes(text)

    def _without_known(self, text: str) -> str:
        spans: list[tuple[int, int]] = []
        for head, secret in self._known:
            if head in text:
                spans += _occurrences(text, secret)
                spans += _cut_short(text, head, secret)
        return _marked(text, spans)

    def _without_escaped(self, text: str) -> str:
        """The text without the known secrets that are escaped in it."""
        plain = UnescapedText(text)
        if not plain.is_changed:
            return text
        spans: list[tuple[int, int]] = []
        for _, head, secret in self._escapable:
            if head in plain.text:
                spans += _occurrences(plain.text, secret)
                spans += _cut_short(plain.text, head, secret)
        return _marked(text, [plain.original(begin, end) for begin, end in spans])

    def held_back(self, text: str) -> int:
        """How many characters at the end of a streamed text must wait for what follows, since they could be the
        beginning of a known secret. Fewer than the longest known secret has, unless they overlap with other secrets."""
        spelled, starts = self._spellings()
        longest = len(spelled[0]) if spelled else 0
        for begin in range(max(0, len(text) - longest + 1), len(text)):
            if text[begin] in starts:
                end = text[begin:]
                if any(secret.startswith(end) and secret != end for secret in spelled):
                    return len(text) - _start_of_secret(text, begin, spelled)
        return 0

    def _spellings(self) -> tuple[tuple[str, ...], frozenset[str]]:
        """The known secrets in the spellings that a stream is held back for, the longest first, and their first
        characters. Made when the first stream needs it."""
        known, found = self._known, self._spelled
        if found is None:
            spellings = {spelling for _, secret in known for spelling in _spellings(secret)}
            ordered = tuple(sorted(spellings, key=len, reverse=True))
            found = ordered, frozenset(spelling[0] for spelling in ordered)
            if known is self._known:  # another thread may have learned more meanwhile
                self._spelled = found
        return found

    def data(self, value: Any) -> Any:
        """A JSON-like value without secrets, of the same shape; values without secrets are returned unchanged. Values
        nested more than 200 levels deep are hidden entirely."""
        return self._data(value, _MAX_DEPTH)

    def _data(self, value: Any, levels: int) -> Any:
        if value is None or value.__class__ in _HARMLESS:
            return value  # most values of a message; the checks below cost more
        if isinstance(value, str):
            return value if value in self._clean else self._value(value)
        if isinstance(value, dict | Mapping):
            return self._mapping(value, levels - 1) if levels else MARK
        if isinstance(value, list | tuple):
            return [self._data(part, levels - 1) for part in value] if levels else MARK
        return value

    def _mapping(self, value: Mapping[Any, Any], levels: int) -> dict[Any, Any]:
        """An object without secrets. Keys and values that are known to be harmless are passed over without a call:
        every streamed message passes here."""
        keys, clean, result = self._keys, self._clean, {}
        for key, part in value.items():
            known = keys.get(key)
            if known is not None and not known[1]:
                kind = part.__class__
                if part is None or kind in _HARMLESS or (kind is str and part in clean):
                    result[known[0]] = part
                    continue
            name, redacted = self._field(key, part, levels)
            result[name] = redacted
        return result

    def _value(self, text: str) -> str:
        """A text without secrets. Short ones that hold none are remembered, since ids and type names recur."""
        clean = self._clean  # read before the text is checked: a new secret replaces the set
        hidden = self.text(text)
        if hidden == text and len(text) <= _MAX_CACHED_KEY:
            if len(clean) >= _MAX_CACHED_VALUES:
                clean.clear()
            clean.add(text)
        return hidden

    def _field(self, key: Any, value: Any, levels: int) -> tuple[Any, Any]:
        if not isinstance(key, str):
            return key, self._data(value, levels)
        clean, secret = self._keys.get(key) or self._key(key)
        if secret and value:
            if isinstance(value, str):
                return clean, MARK
            if isinstance(value, list | tuple):
                return clean, [MARK if isinstance(part, str) and part else self._data(part, levels) for part in value]
        return clean, self._data(value, levels)

    def _key(self, key: str) -> tuple[str, bool]:
        """The key without secrets, and whether its value is one by its name. Cached, since most keys recur."""
        # The cache is read before the key is checked: a secret that is added meanwhile replaces the cache.
        keys, checked = self._keys, (self.text(key), is_secret_field(key))
        if len(keys) < _MAX_CACHED_KEYS and len(key) < _MAX_CACHED_KEY:
            keys[key] = checked
        return checked


# -- known secrets in a text ----------------------------------------------------------------------------------


def _head(secret: str) -> str:
    """The part of a secret that must be there for it to be recognized when cut: half of it, but 8 to 24 characters."""
    return secret[: max(MIN_LENGTH, min(len(secret) // 2, 24))]


def _longest_word(text: str) -> str:
    """The longest part of letters and digits, which are the same in every usual escape."""
    return max(re.split(r"[^A-Za-z0-9]", text), key=len)


def _occurrences(text: str, secret: str) -> Iterator[tuple[int, int]]:
    at = text.find(secret)
    while at >= 0:
        yield at, at + len(secret)
        at = text.find(secret, at + len(secret))


def _cut_short(text: str, head: str, secret: str) -> Iterator[tuple[int, int]]:
    """Where a secret begins, and the text is cut before the secret ends."""
    at = text.find(head)
    while at >= 0:
        end = at + _common_length(secret, text[at : at + len(secret)])
        if end == len(text) or text.startswith(_CUT_MARKS, end):
            yield at, end
        at = text.find(head, end)


def _common_length(first: str, second: str) -> int:
    """The length of the beginning that the two have in common."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((number for number, (left, right) in pairs if left != right), min(len(first), len(second)))


def _marked(text: str, spans: list[tuple[int, int]]) -> str:
    """The text with a mark in place of every span; those that overlap are one."""
    parts, reached = [], 0
    spans.sort()
    for number, (begin, end) in enumerate(spans):
        if number and begin < reached:
            reached = max(reached, end)
            continue
        parts += [text[reached:begin], MARK]
        reached = end
    return "".join((*parts, text[reached:]))


def _start_of_secret(text: str, begin: int, secrets: Iterable[str]) -> int:
    """This position, or the beginning of the secret that would be cut in two there."""
    spans = [span for secret in secrets if secret in text for span in _occurrences(text, secret)]
    for start, end in sorted(spans, reverse=True):
        if start < begin < end:
            begin = start
    return begin


def _parts(secret: str) -> Iterator[str]:
    """A secret as it is, and each line of one that has several, since lines may be shown one by one, with numbers or an
    indent before them."""
    yield secret
    if "\n" in secret:
        yield secret.replace("\r\n", "\n")
        lines = map(str.strip, secret.splitlines())
        yield from (line for line in lines if len(line) >= _MIN_LINE and " " not in line)


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it is, inside JSON, inside JSON within JSON, inside a URL and inside HTML. In a whole text every
    other escape is found too; these are what a stream of fragments is held back for."""
    yield secret
    for ascii_only in (True, False):
        spelled = json.dumps(secret, ensure_ascii=ascii_only)[1:-1]
        yield spelled
        yield spelled.replace("/", "\\/")
        yield json.dumps(spelled, ensure_ascii=ascii_only)[1:-1]
    for encoded in (quote(secret, safe="", errors="replace"), quote_plus(secret, errors="replace")):
        yield encoded
        yield re.sub("%[0-9A-F]{2}", lambda code: code[0].lower(), encoded)
    yield html.escape(secret)


# -- secrets by name ------------------------------------------------------------------------------------------


def is_secret_name(name: str) -> bool:
    """Whether a variable, header, option or parameter of this name holds a secret. One that names a place (a file, an
    address) or a number of tokens does not."""
    lowered = name.lower()
    if not any(hint in lowered for hint in _HINTS):
        return False
    if _NAMED.search(name) is not None:
        return True
    return _HINTED.search(name) is not None and _NO_SECRET.search(name) is None


def is_secret_field(name: str) -> bool:
    """Whether any data under this key is secret. Narrower: much in a conversation is called a key or a token."""
    return name.replace("-", "").replace("_", "").casefold() in _SECRET_FIELDS


def secrets_in(data: Any) -> Iterator[str]:
    """The secrets in options of any shape."""
    unread = [data]
    # A list instead of recursion: options may be nested to any depth.
    while unread:
        part = unread.pop()
        if isinstance(part, Mapping):
            texts = {str(name): value for name, value in part.items() if isinstance(value, str)}
            yield from secret_values(texts)
            unread += part.values()
        elif isinstance(part, list | tuple):
            yield from secret_arguments(item for item in part if isinstance(item, str))
            unread += part
        elif isinstance(part, str) and "://" in part:
            yield from secrets_of_url(part)


def secret_values(fields: Mapping[str, str]) -> Iterator[str]:
    """The values under secret names, and VALUE alone of `Authorization: Bearer VALUE`."""
    for name, value in fields.items():
        if (is_secret_name(name) or is_secret_field(name)) and not _is_placeholder(value):
            yield value
            yield value.rpartition(" ")[2]


def secret_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """`--api-key=VALUE` and `--api-key VALUE`."""
    previous = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("-") and equals and is_secret_name(name):
            yield value
        elif previous.startswith("-") and "=" not in previous and is_secret_name(previous):
            yield argument
        previous = argument


def secrets_of_url(url: str) -> Iterator[str]:
    """The password and the parameters of an address."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return
    yield from filter(None, (password, parts.query))
    yield from (value for name, value in parse_qsl(parts.query) if is_secret_name(name))


def _is_placeholder(value: str) -> bool:
    """One character over and over, such as `xxxxxxxx`, or two in turn."""
    return len(set(value)) < 3


# -- what may be shown ----------------------------------------------------------------------------------------


def redact_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers as they may be shown."""
    return {name: MARK if is_secret_name(name) else hide_shapes(value) for name, value in headers.items()}


def redact_url(url: str) -> str:
    """The address without the name and password, and without its parameters, either of which may be secret."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return MARK
    host = parts.netloc.rpartition("@")[2]
    return hide_shapes(f"{parts.scheme}://{host}{parts.path}") + ("?…" if parts.query else "")
