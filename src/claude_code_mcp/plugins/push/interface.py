"""The interface for the fleet, whose gateway stores people's receivers and sends the machines' notifications."""

from .delivery import Push, Status, has_ended
from .preferences import ALL_NEWS, Notice, Preferences, Receiver, new_id, preferences_in, trial_notice, without_receiver
from .push_routes import PushRoutes
from .receivers import request_for
from .sending import PushReply, SendFailed, post
from .settings import PushSettings
from .web_push import DerivedKey, is_installed

__all__ = [
    "ALL_NEWS",
    "DerivedKey",
    "Notice",
    "Preferences",
    "Push",
    "PushReply",
    "PushRoutes",
    "PushSettings",
    "Receiver",
    "SendFailed",
    "Status",
    "has_ended",
    "is_installed",
    "new_id",
    "post",
    "preferences_in",
    "request_for",
    "trial_notice",
    "without_receiver",
]
