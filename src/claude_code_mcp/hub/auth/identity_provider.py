"""The organization's identity provider, and its assertions in place of a person's sign-in (`xaa`).

A person is identified by an id token. It is read from a file that another program keeps current, or comes from our own
sign-in (OpenID Connect, with PKCE and a loopback address), is stored with the tokens, and is renewed with its refresh
token. `assertion` exchanges it for an assertion for one authorization server (RFC 8693).
"""

import asyncio
import base64
import json
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError, PKCEParameters
from mcp.shared.auth import OAuthMetadata
from pydantic import BaseModel, ValidationError

from .credentials import Vault
from .sign_in import listen
from .silent_oauth import check_passing
from .stored_oauth import NeedsAuth, ShowAddress, body_of, discover, error_of

_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
_ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"  # noqa: S105 - the name of a kind of token
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_TIMEOUT = 20.0
_MARGIN = 30.0
"""Seconds before its expiry at which an id token is renewed."""
_NOT_SIGNED_IN = "no one has signed in at the identity provider"


class _SignedIn(BaseModel):
    id_token: str
    refresh_token: str | None = None


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """Issues assertions. If `id_token_file` is not set, a person must use `sign_in` once."""

    issuer: str
    client_id: str
    vault: Vault
    client_secret: str | None = field(default=None, repr=False)
    callback_port: int | None = None
    """The loopback port of the redirect address, where the provider allows only one."""
    id_token_file: Path | None = None
    """The file with the id token, if another program keeps it current; read again for every assertion."""

    # -- assertions -------------------------------------------------------------------------------------------

    async def assertion(self, issuer: str, resource: str) -> str:
        """An assertion for an authorization server and a resource. Raises NeedsAuth if a person must sign in, and
        OAuthFlowError for other failures."""
        try:
            metadata = await discover(self.issuer, _send)
            form = {
                "grant_type": _EXCHANGE,
                "requested_token_type": _ID_JAG,
                "audience": issuer,
                "resource": resource,
                "subject_token": await self._id_token(metadata),
                "subject_token_type": _ID_TOKEN,
            }
            answer = await self._post(metadata, form)
        except httpx2.TransportError as error:
            raise OAuthFlowError(f"the identity provider cannot be reached: {error}") from None
        body = body_of(answer)
        if answer.status_code != 200:
            reason = error_of(answer) or f"HTTP {answer.status_code}"
            if reason in ("invalid_grant", "invalid_token") and self.id_token_file is None:
                raise NeedsAuth("the sign-in at the identity provider has expired")
            raise OAuthFlowError(f"the identity provider did not return an assertion: {reason}")
        assertion, kind = body.get("access_token"), body.get("issued_token_type", _ID_JAG)
        if not isinstance(assertion, str) or kind != _ID_JAG:
            raise OAuthFlowError("the identity provider's answer contains no assertion")
        return assertion

    async def _id_token(self, metadata: OAuthMetadata) -> str:
        if self.id_token_file is not None:
            try:
                return (await asyncio.to_thread(self.id_token_file.read_text, "utf-8")).strip()
            except (OSError, ValueError):
                raise OAuthFlowError(f"the id token cannot be read from {self.id_token_file}") from None
        signed_in = await self._stored()
        if signed_in is None:
            raise NeedsAuth(_NOT_SIGNED_IN)
        if not _has_expired(signed_in.id_token):
            return signed_in.id_token
        return await self._renewed(metadata)

    async def _renewed(self, metadata: OAuthMetadata) -> str:
        """Renew an expired id token, once for all processes."""
        try:
            async with self.vault.lock(self._key):
                signed_in = await self._stored()
                if signed_in is None:
                    raise NeedsAuth(_NOT_SIGNED_IN)
                if not _has_expired(signed_in.id_token):
                    return signed_in.id_token
                form = {"grant_type": "refresh_token", "refresh_token": signed_in.refresh_token or ""}
                answer = await self._post(metadata, form) if signed_in.refresh_token else None
                renewed = _signed_in(answer, signed_in.refresh_token) if answer is not None else None
                if renewed is None:
                    raise NeedsAuth("the sign-in at the identity provider has expired")
                # Stored before it is used: the old refresh token is used up.
                await self.vault.save(self._key, renewed.model_dump_json())
                return renewed.id_token
        except TimeoutError:
            raise OAuthFlowError("renewing the id token took too long") from None

    # -- signing in -------------------------------------------------------------------------------------------

    async def sign_in(self, show: ShowAddress, timeout: float) -> None:
        """Sign a person in at the provider and store the id token. OAuthFlowError if it fails or takes too long."""
        if self.id_token_file is not None:
            raise OAuthFlowError(f"the id token is read from {self.id_token_file}, so no sign-in is needed")
        try:
            with anyio.fail_after(timeout):
                await self._sign_in(show)
        except TimeoutError:
            raise OAuthFlowError(f"no sign-in within {timeout:g} s") from None
        except httpx2.TransportError as error:
            raise OAuthFlowError(f"the identity provider cannot be reached: {error}") from None

    async def _sign_in(self, show: ShowAddress) -> None:
        metadata = await discover(self.issuer, _send)
        proof, state, nonce = PKCEParameters.generate(), secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        async with listen(self.callback_port) as callback:
            query = {
                "response_type": "code",
                "client_id": self.client_id,
                "redirect_uri": callback.redirect_uri,
                "scope": "openid offline_access",
                "state": state,
                "nonce": nonce,
                "code_challenge": proof.code_challenge,
                "code_challenge_method": "S256",
            }
            await show(f"{metadata.authorization_endpoint}?{urlencode(query)}")
            callback_result = await callback.wait()
            if callback_result.state is None or not secrets.compare_digest(callback_result.state, state):
                raise OAuthFlowError("the browser returned from a different sign-in")
            form = {
                "grant_type": "authorization_code",
                "code": callback_result.code or "",
                "redirect_uri": callback.redirect_uri,
                "code_verifier": proof.code_verifier,
            }
            answer = await self._post(metadata, form)
        signed_in = _signed_in(answer, None)
        claims = _claims(signed_in.id_token) if signed_in is not None else {}
        if signed_in is None or claims.get("nonce") != nonce:
            raise OAuthFlowError("the identity provider's answer contains no id token for this sign-in")
        await self.vault.save(self._key, signed_in.model_dump_json())

    async def sign_out(self) -> None:
        await self.vault.delete(self._key)

    # -- parts ------------------------------------------------------------------------------------------------

    @property
    def _key(self) -> str:
        return f"identity provider {self.issuer} {self.client_id}"

    async def _stored(self) -> _SignedIn | None:
        try:
            stored = await self.vault.load(self._key)
        except OSError as error:
            raise OAuthFlowError(f"the sign-in cannot be read: {error.strerror}") from None
        try:
            return None if stored is None else _SignedIn.model_validate_json(stored)
        except ValidationError:
            return None

    async def _post(self, metadata: OAuthMetadata, form: dict[str, str]) -> httpx2.Response:
        client = {"client_id": self.client_id}
        if self.client_secret is not None:
            client["client_secret"] = self.client_secret
        answer = await _send(httpx2.Request("POST", str(metadata.token_endpoint), data={**client, **form}))
        check_passing(answer)
        return answer


async def _send(request: httpx2.Request) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=_TIMEOUT) as client:
        return await client.send(request)


def _signed_in(answer: httpx2.Response, refresh_token: str | None) -> _SignedIn | None:
    body = body_of(answer)
    if answer.status_code != 200 or not isinstance(body.get("id_token"), str):
        return None
    renewed = body.get("refresh_token")
    return _SignedIn(id_token=body["id_token"], refresh_token=renewed if isinstance(renewed, str) else refresh_token)


def _claims(id_token: str) -> dict[str, Any]:
    """The claims of an id token. Its signature is not checked, because it came from the provider and is only sent back
    to it."""
    try:
        payload = id_token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _has_expired(id_token: str) -> bool:
    ends = _claims(id_token).get("exp")
    return isinstance(ends, int | float) and time.time() > ends - _MARGIN
