"""One-time values that pass through a browser."""

import hmac
import secrets
from collections import OrderedDict

from ...core.model.text import base64url


class OneTimeTexts:
    """One-time values that pass through a browser: whether this process created them and whether they are unused.
    Outstanding values are not stored, so that a flood of new ones cannot displace those of others; of used values the
    latest `most` are stored. After a restart none is valid."""

    def __init__(self, most: int = 1000) -> None:
        self._key = secrets.token_bytes(32)
        self._most = most
        self._used: OrderedDict[str, None] = OrderedDict()

    def derived(self, purpose: str, text: str) -> str:
        """A value that only this process can derive from a text, different for each purpose; 43 characters."""
        message = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
        return base64url(hmac.digest(self._key, message, "sha256"))

    def is_derived(self, presented: str, purpose: str, text: str) -> bool:
        return hmac.compare_digest(presented.encode("utf-8", "surrogatepass"), self.derived(purpose, text).encode())

    def use(self, text: str) -> bool:
        """Marks a value as used; returns whether it was unused."""
        if text in self._used:
            return False
        self._used[text] = None
        if len(self._used) > self._most:
            self._used.popitem(last=False)
        return True
