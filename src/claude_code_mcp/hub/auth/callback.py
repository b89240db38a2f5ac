"""The loopback address that the browser comes back to after signing in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import AuthorizationCodeResult, OAuthFlowError

PATH = "/callback"
_DONE = "You are signed in. You can close this window."
_NOT_DONE = "Signing in did not work. You can close this window and look at what asked you to sign in."


@dataclass(frozen=True, slots=True)
class Callback:
    """A listener for one answer."""

    port: int
    _answer: asyncio.Future[AuthorizationCodeResult]

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def wait(self) -> AuthorizationCodeResult:
        """The answer of the authorization server. Raises OAuthFlowError if it is a refusal."""
        return await self._answer


@asynccontextmanager
async def listen(port: int | None) -> AsyncIterator[Callback]:
    """Listens on the port, or on one that is free."""
    answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target = (await reader.readline()).decode("latin-1").split(" ")[1]
            status, text = _take(target, answer)
            body = f"<!doctype html><meta charset=utf-8><title>claude-code-mcp</title><p>{text}"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
            await writer.drain()
        except (OSError, IndexError, ValueError):
            pass  # not a browser
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port or 0)
    async with server:
        try:
            yield Callback(server.sockets[0].getsockname()[1], answer)
        finally:
            answer.cancel()


def _take(target: str, answer: "asyncio.Future[AuthorizationCodeResult]") -> tuple[str, str]:
    parts = urlsplit(target)
    if parts.path != PATH or answer.done():
        return "404 Not Found", _NOT_DONE
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if "code" not in query:
        why = query.get("error_description") or query.get("error") or "no code"
        answer.set_exception(OAuthFlowError(f"the authorization server refused: {why}"))
        return "200 OK", _NOT_DONE
    answer.set_result(AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss")))
    return "200 OK", _DONE
