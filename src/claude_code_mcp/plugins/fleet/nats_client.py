"""The only module that imports nats-py: a client that always closes, and the types and errors that the fleet uses.

What nats-py 2.16 does, and what `Client` does about it:

- `publish` waits without a limit while the server does not read, and drops a cancellation meanwhile. Here it waits
  `SEND_SECONDS` at most, and a cancellation passes.
- `connect`, `request` and `flush` use `asyncio.wait_for`, which on Python 3.11 drops a cancellation that comes together
  with the result. Here it passes: a task that repeats one of them ends when it is cancelled.
- A client that reconnects can drop a cancellation and then tries forever, even after `close`; an event loop that shuts
  down waits for it. Here every attempt first checks whether the client is closed or its task is cancelled.
- A handshake that ends after `close` makes the client connected again and starts new tasks. Here CLOSED is final, and
  a task that starts after it returns at once.
- `close` waits without a limit for a server that does not read, and 30 seconds for one that does not end TLS. Here it
  waits `CLOSE_SECONDS`, then aborts the socket and cancels every task until it has ended.
- `drain` can take 40 seconds. Here it takes `DRAIN_SECONDS` to send, and then closes the client in any case.
- A PONG for a `flush` that was cancelled or timed out ends the read loop, and the connection is deaf. Here it does not.
- An error that the server reports closes the client permanently, without a callback. Here the client reconnects.

This depends on private names of nats-py. `_check_private_names` refuses a release that lacks one of them, and
pyproject.toml pins the minor version.
"""

import asyncio
import contextlib
import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import anyio
import nats
import nats.aio.client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, FlushTimeoutError, NoServersError
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    ObjectStoreConfig,
    PubAck,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, BadRequestError, KeyNotFoundError, KeyWrongLastSequenceError, NotFoundError
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from ...core.errors import ClaudeCodeError

__all__ = [
    "APIError",
    "AckPolicy",
    "BadRequestError",
    "Client",
    "ConnectionClosedError",
    "ConsumerConfig",
    "DeliverPolicy",
    "DiscardPolicy",
    "IncompatibleNats",
    "JetStreamContext",
    "KeyNotFoundError",
    "KeyValue",
    "KeyValueConfig",
    "KeyWrongLastSequenceError",
    "Msg",
    "NatsError",
    "NoServersError",
    "NotFoundError",
    "ObjectStore",
    "ObjectStoreConfig",
    "PubAck",
    "StorageType",
    "StreamConfig",
    "StreamInfo",
    "Subscription",
    "cancellation_passes",
]

log = logging.getLogger(__name__)

SEND_SECONDS: Final = 5.0
"""How long to wait for a server that does not read."""
CLOSE_SECONDS: Final = 1.0
"""How long `close` waits for the server to read the last messages, and again for the client's tasks to end."""
DRAIN_SECONDS: Final = 1.5
"""How long `drain` waits for the server to read the last messages."""
_CANCEL_PAUSE = 0.05
"""Time between two cancellations of a task that ignored the first."""
_MAX_PAUSE = 1.0
"""How long a pause waits for open requests."""


class IncompatibleNats(ClaudeCodeError):
    """The installed nats-py lacks private names that `Client` overrides or uses."""


_METHODS = (
    "_attempt_reconnect",
    "_close",
    "_connect_to_server",
    "_flush_pending",
    "_flusher",
    "_ping_interval",
    "_process_connect_init",
    "_process_err",
    "_process_op_err",
    "_process_pong",
    "_read_loop",
)
_ATTRIBUTES = (
    "_closed_cb",
    "_disconnected_cb",
    "_error_cb",
    "_flush_queue",
    "_flusher_task",
    "_pending",
    "_pending_data_size",
    "_pongs",
    "_resp_map",
    "_resp_sub_prefix",
    "_status",
    "_subs",
    "_transport",
)


def _check_private_names(client: type[nats.aio.client.Client]) -> None:
    """Raises IncompatibleNats unless the class has everything that `Client` relies on."""
    sample = client()
    missing = [name for name in _METHODS if not inspect.iscoroutinefunction(getattr(client, name, None))]
    missing += [name for name in _ATTRIBUTES if not hasattr(sample, name)]
    if missing:
        raise IncompatibleNats(
            f"nats-py {nats.aio.client.__version__} is not compatible with this version of claude-code-mcp "
            f"({', '.join(missing)} changed). Install nats-py 2.16."
        )


_check_private_names(nats.aio.client.Client)


class OpenRequests:
    """Counts the requests of a client that wait for answers, and can pause new ones.

    A machine may send a gateway nothing but replies to its requests. A server that reloads its keys forgets open
    requests and drops the replies, so keys are reloaded while no request is open.
    """

    def __init__(self) -> None:
        self._open = 0
        self._ended = anyio.Event()
        self._paused: anyio.Event | None = None
        self._pausing = anyio.Lock()

    @contextlib.asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """Wraps a request: waits while requests are paused."""
        while self._paused is not None:
            await self._paused.wait()
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            self._ended.set()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No request is open within the block, except that one without an answer for a second may lose it."""
        async with self._pausing:
            paused = self._paused = anyio.Event()
            try:
                with anyio.move_on_after(_MAX_PAUSE):
                    while self._open:
                        self._ended = anyio.Event()
                        await self._ended.wait()
                yield
            finally:
                self._paused = None
                paused.set()


@contextlib.contextmanager
def cancellation_passes() -> Iterator[None]:
    """Raises CancelledError at the end of a block that dropped a cancellation of its task, or replaced it by another
    exception. A scope of AnyIO needs no help: it cancels again at the next await, and would not know this error."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()

    def is_dropped() -> bool:
        return task.cancelling() > before and anyio.current_effective_deadline() != -math.inf

    try:
        yield
    except Exception:
        if is_dropped():
            raise asyncio.CancelledError from None
        raise
    if is_dropped():
        raise asyncio.CancelledError


class Client(nats.aio.client.Client):
    """A NATS client that reconnects after every error and stays closed once it is closed."""

    _state = nats.aio.client.Client.DISCONNECTED

    def __init__(self) -> None:
        super().__init__()
        self.requests = OpenRequests()
        self._own_tasks: set[asyncio.Task[Any]] = set()

    @property
    def _status(self) -> int:
        return self._state

    @_status.setter
    def _status(self, status: int) -> None:
        if self._state != self.CLOSED:
            self._state = status

    # -- public methods -------------------------------------------------------------------------------------------

    async def connect(self, *args: Any, **kwargs: Any) -> None:
        """Like nats-py's; a client that could not connect is closed and leaves no socket open."""
        try:
            with cancellation_passes():
                await super().connect(*args, **kwargs)
        except BaseException:
            self._status = self.CLOSED
            self._abort()
            raise

    async def flush(self, timeout: float = SEND_SECONDS) -> None:
        """Like nats-py's, but also accepts a fraction of a second."""
        with cancellation_passes():
            await super().flush(timeout)  # type: ignore[arg-type]

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,
        old_style: bool = False,
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Like nats-py's, but the time limit covers everything, including a pause of requests: nats-py's begins when
        the request is sent. Raises NatsTimeoutError."""
        try:
            with cancellation_passes():
                async with asyncio.timeout(timeout), self.requests.counted():
                    return await super().request(subject, payload, timeout, old_style, headers)
        except NatsError:
            raise
        except TimeoutError:
            raise NatsTimeoutError from None

    async def drain(self) -> None:
        """Sends all published messages if the server reads them in time, and closes the client. Raises no NatsError."""
        try:
            if self.is_connected:
                await self.flush(timeout=DRAIN_SECONDS)
        except (NatsError, OSError) as problem:
            log.debug("the server did not read everything before the connection was closed: %s", problem)
            self._abort_transport()  # it would not read the rest either
        finally:
            await self.close()

    # -- sending ----------------------------------------------------------------------------------------------------

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        queue = self._flush_queue
        flusher_runs = self._flusher_task is not None and not self._flusher_task.done()
        if not force_flush and flusher_runs and queue is not None and not queue.full():
            return await super()._flush_pending()  # which does not wait in this case: no message needs a timer
        # In a separate task: nats-py drops a cancellation of the caller here.
        flushing = asyncio.ensure_future(super()._flush_pending(force_flush))
        try:
            done, _ = await asyncio.wait([flushing], timeout=SEND_SECONDS)
        finally:
            flushing.cancel()
        if done:
            return flushing.result()
        # An error here would end a task of nats-py permanently, such as the read loop.
        if asyncio.current_task() not in self._own_tasks:
            raise FlushTimeoutError
        return None

    # -- the tasks of nats-py -----------------------------------------------------------------------------------------

    async def _read_loop(self) -> None:
        await self._run_own(super()._read_loop)

    async def _ping_interval(self) -> None:
        await self._run_own(super()._ping_interval)

    async def _flusher(self) -> None:
        await self._run_own(super()._flusher)

    async def _attempt_reconnect(self) -> None:
        self._abort_transport()  # it is broken; nats-py would wait for the other side to end TLS
        await self._run_own(super()._attempt_reconnect)

    async def _run_own(self, run: Callable[[], Awaitable[None]]) -> None:
        task = asyncio.current_task()
        if self.is_closed or task is None:
            return
        self._own(task)
        await run()

    def _own(self, task: asyncio.Task[Any]) -> None:
        self._own_tasks.add(task)
        task.add_done_callback(self._own_tasks.discard)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _connect_to_server(self, *args: Any, **kwargs: Any) -> None:
        self._check_wanted()
        await super()._connect_to_server(*args, **kwargs)
        self._check_wanted()

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        self._check_wanted()

    def _check_wanted(self) -> None:
        """Raises CancelledError in a connection attempt whose cancellation nats-py dropped."""
        task = asyncio.current_task()
        if self.is_closed or (task in self._own_tasks and task is not None and task.cancelling()):
            self._abort_transport()
            raise asyncio.CancelledError

    async def _process_err(self, err_msg: str) -> None:
        if "permissions violation" in err_msg.lower():  # of one message: the connection stays
            await super()._process_err(err_msg)
            return
        problem = NatsError(f"nats: {err_msg}")
        await self._error_cb(problem)
        # The next attempt shows whether the server still accepts the key.
        await self._process_op_err(problem)

    # -- closing ------------------------------------------------------------------------------------------------------

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Closes the client permanently, in any state. Takes at most twice CLOSE_SECONDS."""
        if self.is_closed:
            return
        connected = self.is_connected
        self._status = self.CLOSED
        try:
            if connected and self._transport:
                await self._send_rest()
        finally:
            tasks = self._abort()
        await self._end(tasks)
        if do_cbs:
            for call in (self._disconnected_cb, self._closed_cb):
                if call is not None:
                    await call()

    async def _send_rest(self) -> None:
        transport: Any = self._transport
        try:
            transport.writelines(self._pending[:])
            transport.close()
        except (OSError, RuntimeError, AttributeError) as problem:  # AttributeError: TLS that has ended
            log.debug("the connection was interrupted while it was closed: %s", problem)
            return
        # In a separate task: a reconnection that waits for the same future cancels it when it ends.
        closed = asyncio.ensure_future(transport.wait_closed())
        try:
            await asyncio.wait([closed], timeout=CLOSE_SECONDS)
        finally:
            closed.cancel()
        if closed.done() and not closed.cancelled() and (failure := closed.exception()) is not None:
            log.debug("the connection was interrupted while it was closed: %s", failure)

    def _abort(self) -> list[asyncio.Task[Any]]:
        """Drops everything that the client holds; returns its cancelled tasks. Does not wait."""
        self._abort_transport()
        self._pending, self._pending_data_size = [], 0
        tasks: list[Any] = [*self._own_tasks]
        for subscription in self._subs.values():
            consumer = subscription._jsi
            tasks += [subscription._wait_for_msgs_task, *(subscription._pending_next_msgs_calls or {}).values()]
            tasks += [consumer._hbtask, consumer._fctask] if consumer is not None else []
            subscription._stop_processing()
        self._subs.clear()
        # A request that waits for its reply fails now, not at its limit.
        for future in (*self._resp_map.values(), *self._pongs):
            if not future.done():
                future.set_exception(ConnectionClosedError())
                future.exception()  # no warning if no task waits for it
        self._pongs, self._resp_sub_prefix = [], None
        tasks = [task for task in tasks if task not in (None, asyncio.current_task()) and not task.done()]
        for task in tasks:
            task.cancel()
        return tasks

    def _abort_transport(self) -> None:
        # Also the bare transport: TLS has no writer until its handshake is complete.
        for name in ("_io_writer", "_bare_io_writer"):
            writer = getattr(self._transport, name, None)
            if writer is not None:
                # Earlier releases of Python 3.11 raise AttributeError for a TLS transport that was closed twice.
                with contextlib.suppress(AttributeError):
                    writer.transport.abort()

    async def _end(self, tasks: list[asyncio.Task[Any]]) -> None:
        """Waits for cancelled tasks, cancelling them repeatedly because nats-py drops cancellations."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + CLOSE_SECONDS
        while tasks and loop.time() < limit:
            _, waiting = await asyncio.wait(tasks, timeout=_CANCEL_PAUSE)
            tasks = [*waiting]
            for task in tasks:
                task.cancel()
        if tasks:
            log.warning("a closed NATS connection left tasks running: %s", tasks)
