"""Meters the model traffic of one process, if this server carries it."""

from collections.abc import Callable

from ..model.usage import Usage


class ModelTraffic:
    """The meter of one process. Its owner sets the two callbacks, which run in the event loop; the carrier of the
    traffic calls them."""

    def __init__(self) -> None:
        self.open_requests = 0
        """Model requests whose client still waits for the answer or the rest of it."""
        self.why_refused: Callable[[], str | None] = lambda: None
        """Called before a request that has a cost; a returned reason prevents it."""
        self.counted: Callable[[Usage], None] = lambda _: None
        """Called with the usage of an answer when it is complete or no more will arrive."""

    @property
    def unfinished(self) -> Usage:
        """The usage so far of unfinished answers."""
        return Usage()
