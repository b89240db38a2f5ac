"""The private parts of the MCP SDK that the hub needs, in one place so that an upgrade has one place to look.

The stream protocols have no public name. The OAuth provider is made to be subclassed, but its hooks are private;
`OAuthProvider` gives them public names.
"""

from collections.abc import AsyncGenerator

import httpx2
from mcp.client._transport import ReadStream, WriteStream
from mcp.client.auth import OAuthClientProvider
from mcp.shared.message import SessionMessage

Inbox = ReadStream[SessionMessage | Exception]
Outbox = WriteStream[SessionMessage]


class OAuthProvider(OAuthClientProvider):
    """The SDK's OAuth client with public names for the methods that subclasses override."""

    async def load_context(self) -> None:
        """Fills `context` from storage; called before the first request."""
        await super()._initialize()

    def authenticate(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yields the requests to send, the given one among them, and takes their responses."""
        return super()._auth_flow(request)

    async def save_tokens(self, response: httpx2.Response) -> None:
        """Takes the tokens out of the answer to a sign-in and stores them."""
        await super()._handle_token_response(response)

    def prepare_token_request(self) -> None:
        """Called before each request to the token endpoint is made."""

    def select_authorization_server(self, advertised: list[str]) -> str:
        """Which of the authorization servers that a server names is used."""
        return super()._select_authorization_server(advertised)

    def expected_issuer(self) -> str:
        """The authorization server that metadata and registrations must be of."""
        return super()._expected_issuer()

    @property
    def context_loaded(self) -> bool:
        return self._initialized

    async def refresh_request(self) -> httpx2.Request:
        """The request that refreshes the access token."""
        return await self._refresh_token()

    async def code_exchange_request(self, code: str, code_verifier: str) -> httpx2.Request:
        """The request that exchanges the code of a sign-in for tokens."""
        return await self._exchange_token_authorization_code(code, code_verifier)

    async def save_refreshed_tokens(self, response: httpx2.Response) -> bool:
        """Stores the tokens of the answer to a refresh; False where the server refused it."""
        return await self._handle_refresh_response(response)

    def add_bearer(self, request: httpx2.Request) -> None:
        """Puts the access token into the headers of a request."""
        self._add_auth_header(request)

    async def reload(self) -> None:
        """Fills `context` from storage again."""
        await self.load_context()
        self._initialized = True

    async def _initialize(self) -> None:
        await self.reload()

    async def _refresh_token(self) -> httpx2.Request:
        self.prepare_token_request()
        return await super()._refresh_token()

    async def _exchange_token_authorization_code(self, auth_code: str, code_verifier: str) -> httpx2.Request:
        self.prepare_token_request()
        return await super()._exchange_token_authorization_code(auth_code, code_verifier)

    def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        return self.authenticate(request)

    def _select_authorization_server(self, advertised: list[str]) -> str:
        return self.select_authorization_server(advertised)

    def _expected_issuer(self) -> str:
        return self.expected_issuer()

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await self.save_tokens(response)
