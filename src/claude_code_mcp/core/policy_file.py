"""The policy that the settings name."""

from .config import Settings
from .errors import InvalidArgument
from .policy.policy import Policy, built_in, parse_policy


def read_policy(settings: Settings, fallback: str) -> Policy:
    """The policy of the settings. Callers that it does not name have the profile `fallback`, unless the settings name
    one. Raises InvalidArgument with the problem in one line. Blocks on the disk."""
    if settings.policy_file is None:
        return built_in(settings.profile or fallback)
    try:
        text = settings.policy_file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"The policy file {settings.policy_file} cannot be read: {error}") from None
    return parse_policy(text, str(settings.policy_file), settings.profile, fallback)
