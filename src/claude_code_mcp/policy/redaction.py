"""Takes secrets out of text that leaves the server: those it was told of, and everything shaped like one.

Fast on large text (a pattern is tried only where its landmark occurs), and stable: redacting twice changes nothing.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

MARK = "[redacted]"
_SHORTEST = 8
_MOST = 2000

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIAL|CREDENTIALS|COOKIE|AUTH|"
    r"PAT|DSN|WEBHOOK|SIGNATURE)(?:$|_(?!FILE|PATH|DIR|SOCK|URL|ID|NAME|TYPE|HELPER|TTL))|"
    r"(?:API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY$|PASSWORD$|SECRET$|TOKEN$",
    re.IGNORECASE,
)
_SECRET_FIELDS = frozenset(
    {
        *("authorization", "proxyauthorization", "xapikey", "apikey", "cookie", "setcookie", "privatekey"),
        *("password", "passwd", "clientsecret", "accesstoken", "refreshtoken"),
    }
)

_END = r"(?![A-Za-z0-9_-])"
_SHAPES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (landmarks, re.compile(pattern, flags))
    for landmarks, pattern, flags in (
        (("sk-",), r"\bsk-(?:ant-[\w-]{6,}|[A-Za-z0-9_-]{20,})", 0),
        (("sk_", "rk_", "pk_"), r"\b[srp]k_(?:live|test)_\w{10,}", 0),
        (("gh", "github_pat_"), r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,})", 0),
        (("glpat-",), r"\bglpat-[\w-]{16,}", 0),
        (("xox", "xapp-"), r"\b(?:xox[a-z]|xapp)-[\w-]{10,}", 0),
        (("AKIA", "ASIA"), rf"\b(?:AKIA|ASIA)[0-9A-Z]{{16}}{_END}", 0),
        (("AIza",), r"\bAIza[\w-]{30,}", 0),
        (("ya29.",), r"\bya29\.[\w-]{20,}", 0),
        (("npm_", "hf_", "dop_v1_"), r"\b(?:npm|hf|dop_v1)_[A-Za-z0-9]{20,}", 0),
        (("pypi-",), r"\bpypi-[\w-]{40,}", 0),
        (("SG.",), r"\bSG\.[\w-]{16,}\.[\w-]{16,}", 0),
        (("eyJ",), r"\beyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*", 0),
        (
            ("PRIVATE KEY",),
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----).)*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
            re.DOTALL,
        ),
    )
)
# Groups: what stays before the secret.
_IN_CONTEXT: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (
        ("uthorization", "UTHORIZATION"),
        re.compile(
            r"(authorization[\\\"']{0,4}\s*[:=]\s*[\\\"']{0,4}(?:(?:bearer|basic|token|digest|apikey|negotiate)\s+)?+)"
            r"(?!\[redacted\])(?:[A-Za-z0-9+/=_.~:-]{4,})",
            re.IGNORECASE,
        ),
    ),
    (("earer", "EARER"), re.compile(r"(\bbearer\s+)(?!\[redacted\])[A-Za-z0-9+/=_.~-]{12,}", re.IGNORECASE)),
    (
        ("-api-key", "-Api-Key", "-API-KEY", "-api-token"),
        re.compile(
            r"(x-(?:goog-)?api-(?:key|token)[\\\"']{0,4}\s*:\s*[\\\"']{0,4})(?!\[redacted\])[^\s\"'\\,;]{4,}",
            re.IGNORECASE,
        ),
    ),
    (
        ("ookie", "OOKIE"),
        re.compile(r"((?:set-)?cookie[\\\"']{0,4}\s*:\s*[\\\"']{0,4})[^\s\"'\\;=]+=[^\r\n\"'\\]*", re.IGNORECASE),
    ),
    (("://",), re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)(?!\[redacted\]@)[^\s/@\"'<>]{1,500}(?=@)")),
    (
        ("token=", "key=", "secret=", "password=", "sig=", "signature="),
        re.compile(
            r"([?&#](?:[a-z_-]*token|[a-z_-]*key|[a-z_-]*secret|password|sig|signature)=)(?!\[redacted\])[^\s&#\"'<>]{4,}",
            re.IGNORECASE,
        ),
    ),
)
# A streamed message is a dozen short texts, and hardly any of them needs more than this one look.
_LANDMARKS = tuple(landmark for landmarks, _ in (*_SHAPES, *_IN_CONTEXT) for landmark in landmarks)
_KEYS_REMEMBERED = 1000
_LONG_KEY = 100


class Redactor:
    """Knows secrets and takes them out. It may learn more at any time, from any thread."""

    def __init__(self, known_secrets: Iterable[str] = ()) -> None:
        self._known: tuple[str, ...] = ()
        self._keys: dict[str, tuple[str, bool]] = {}
        self.add(known_secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Learns secrets as such. Very short ones are left alone: they would take ordinary words with them."""
        known = dict.fromkeys(self._known)
        for secret in map(str.strip, secrets):
            if len(secret) >= _SHORTEST and secret not in MARK and not _is_ordinary(secret):
                known.update(dict.fromkeys(_spellings(secret)))
        # A secret may be part of another one, so the longest go first.
        self._known = tuple(sorted(list(known)[-_MOST:], key=len, reverse=True))
        self._keys = {}

    def learn(self, environment: Mapping[str, str]) -> None:
        """Learns the values of variables whose names say that they are secret."""
        self.add(value for name, value in environment.items() if is_secret_name(name))

    def learn_from(self, data: Any) -> None:
        """Learns from options: variables, headers and the like, wherever in them they are."""
        if isinstance(data, Mapping):
            for name, value in data.items():
                if isinstance(value, str) and (is_secret_name(str(name)) or _is_secret_field(str(name))):
                    self.add((value, value.rpartition(" ")[2]))
                else:
                    self.learn_from(value)
        elif isinstance(data, list | tuple):
            for value in data:
                self.learn_from(value)

    def text(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._known:
            if secret in text:
                text = text.replace(secret, MARK)
        return self._without_shapes(text) if _has_landmark(text) else text

    def _without_shapes(self, text: str) -> str:
        for landmarks, pattern in _SHAPES:
            if any(landmark in text for landmark in landmarks):
                text = pattern.sub(MARK, text)
        for landmarks, pattern in _IN_CONTEXT:
            if any(landmark in text for landmark in landmarks):
                text = pattern.sub(rf"\g<1>{MARK}", text)
        return text

    def data(self, value: Any) -> Any:
        """A JSON-like value without secrets, of the same shape; what holds none is given back as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return dict(self._field(key, part) for key, part in value.items())
        if isinstance(value, list | tuple):
            return [self.data(part) for part in value]
        return value

    def _field(self, key: Any, value: Any) -> tuple[Any, Any]:
        if not isinstance(key, str):
            return key, self.data(value)
        clean, secret = self._keys.get(key) or self._key(key)
        return clean, MARK if secret and value and isinstance(value, str) else self.data(value)

    def _key(self, key: str) -> tuple[str, bool]:
        """The key without secrets, and whether it says that its value is one. Most come again and again."""
        keys, told = self._keys, (self.text(key), _is_secret_field(key))
        if len(keys) < _KEYS_REMEMBERED and len(key) < _LONG_KEY:
            keys[key] = told
        return told


def _has_landmark(text: str) -> bool:
    for landmark in _LANDMARKS:  # noqa: SIM110 - any() with a generator takes three times as long
        if landmark in text:
            return True
    return False


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds a secret, going by the name."""
    return _SECRET_NAME.search(name) is not None


def _is_secret_field(name: str) -> bool:
    return name.replace("-", "").replace("_", "").casefold() in _SECRET_FIELDS


def _is_ordinary(value: str) -> bool:
    """Whether a value is no secret, whatever its name: a path, a number, one character over and over."""
    return value.startswith(("/", "~", "./")) or value.isdigit() or len(set(value)) < 3


def _spellings(secret: str) -> list[str]:
    """A secret as it is, inside JSON and inside a URL."""
    return [secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe="")]
