"""The push part of one server's API."""

from collections.abc import Callable
from typing import Any

from ...core.service import Service
from .delivery import Push
from .push_routes import PushRoutes


class PushOfServer(PushRoutes):
    """The routes for one server's receivers, and the delivery to them."""

    def __init__(self, service: Service, push: Push | None = None) -> None:
        """Create it within the service's event loop."""
        self.push = push or Push(service, service.settings.state_dir / "web")
        super().__init__(service.audit, self.push)
        service.observe(self.push)

    async def facts(self, user: Any) -> dict[str, Any]:
        return {"push": True, "vapidPublicKey": await self.push.vapid_key()}

    def page_opened(self, url: str, knows: Callable[[str], bool]) -> None:
        self.push.knows = knows
        self.push.serve_at(url)

    def page_moved(self, url: str) -> None:
        self.push.move(url)

    async def reaches(self, principal: str) -> bool:
        return (await self.push.read(principal)).pushes_questions

    @property
    def pending(self) -> bool:
        return self.push.pending

    def close(self) -> None:
        self.push.close()
