"""The meter of what one process sends to the model, where this server carries that traffic."""

from collections.abc import Callable

from ..model.usage import Usage


class ModelTraffic:
    """The meter of one process. Its owner sets the two calls, which come from the event loop; whoever carries the
    traffic makes them."""

    def __init__(self) -> None:
        self.open_requests = 0
        """Requests to the model whose client still waits for the answer, or for the rest of it."""
        self.why_refused: Callable[[], str | None] = lambda: None
        """Asked before a request that costs something; a reason keeps it from being sent."""
        self.counted: Callable[[Usage], None] = lambda _: None
        """Called with what an answer has used, when all of it has passed, or no more will."""

    @property
    def unfinished(self) -> Usage:
        """What answers have used so far that have not ended."""
        return Usage()
