"""With whom a session is shared, as the console asks for it and changes it."""

from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from ..model.text import iso
from ..server.tools.base import Arguments
from ..service import Service
from ..state.shares import Access
from .answers import answer, arguments_of
from .guard import WebUser
from .session_routes import session_id_of


class ShareArguments(Arguments):
    access: Literal["watch", "answer"] = "watch"


class SharingRoutes:
    """The handlers. The owner of a session changes with whom it is shared; whoever may watch it sees that."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request, user: WebUser) -> Response:
        return await self._answer(session_id_of(request), user)

    async def give(self, request: Request, user: WebUser) -> Response:
        arguments, session_id = await arguments_of(request, ShareArguments), session_id_of(request)
        await self._service.stored.share(session_id, _grantee(request), Access(arguments.access), caller=user.caller)
        return await self._answer(session_id, user)

    async def take_back(self, request: Request, user: WebUser) -> Response:
        session_id = session_id_of(request)
        await self._service.stored.unshare(session_id, _grantee(request), caller=user.caller)
        return await self._answer(session_id, user)

    async def _answer(self, session_id: str, user: WebUser) -> Response:
        shares = await self._service.stored.shares(session_id, caller=user.caller)
        rows = [{"with": share.grantee, "access": str(share.access), "since": iso(share.at)} for share in shares]
        return answer({"owner": shares[0].owner if shares else user.principal, "shares": rows})


def _grantee(request: Request) -> str:
    return str(request.path_params["grantee"])
