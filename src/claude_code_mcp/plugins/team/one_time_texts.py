"""Texts that go through a browser and come back."""

import hmac
import secrets
from collections import OrderedDict

from ...core.model.text import base64url


class OneTimeTexts:
    """Texts that go through a browser and come back: whether this process made them, and whether they came before.

    Nothing is remembered of those on their way, so that nobody can push out those of others by beginning many; of those
    that have come back, the latest `most`. After a restart none counts any more.
    """

    def __init__(self, most: int = 1000) -> None:
        self._key = secrets.token_bytes(32)
        self._most = most
        self._used: OrderedDict[str, None] = OrderedDict()

    def derived(self, purpose: str, text: str) -> str:
        """What only this process can make of a text, another one for each purpose; 43 characters."""
        message = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
        return base64url(hmac.digest(self._key, message, "sha256"))

    def is_derived(self, presented: str, purpose: str, text: str) -> bool:
        return hmac.compare_digest(presented.encode("utf-8", "surrogatepass"), self.derived(purpose, text).encode())

    def use(self, text: str) -> bool:
        """Uses a text up; whether that was not done before."""
        if text in self._used:
            return False
        self._used[text] = None
        if len(self._used) > self._most:
            self._used.popitem(last=False)
        return True
