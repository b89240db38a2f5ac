"""The interface for the fleet, whose gateway serves the same page with the data of all machines."""

from .console import Console, ConsolePort
from .event_frames import frame, most_urgent_first, page_row
from .feeds import HEARTBEAT, StreamResponse
from .guard import Accounts, WebUser
from .page_routes import PageRoutes, ServiceRoutes, StillSignedIn, api_routes
from .session_routes import LISTS, ListRoute
from .settings import ConsoleSettings
from .sign_ins import SignIn

__all__ = [
    "HEARTBEAT",
    "LISTS",
    "Accounts",
    "Console",
    "ConsolePort",
    "ConsoleSettings",
    "ListRoute",
    "PageRoutes",
    "ServiceRoutes",
    "SignIn",
    "StillSignedIn",
    "StreamResponse",
    "WebUser",
    "api_routes",
    "frame",
    "most_urgent_first",
    "page_row",
]
