"""What makes the real CLI report a usage limit."""

from typing import Any

from claude_code_mcp.testing.script import fail

SUBSCRIPTION = {"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-scripted"}
"""Only with a subscription the CLI reports limits; the token is made up, and only the scripted model sees it."""
UNIFIED = "anthropic-ratelimit-unified-"


def limit_headers(reset: float, status: str = "rejected", used: float = 1.0) -> dict[str, str]:
    return {
        UNIFIED + "status": status,
        UNIFIED + "reset": str(int(reset)),
        UNIFIED + "representative-claim": "five_hour",
        UNIFIED + "5h-utilization": str(used),
        UNIFIED + "5h-reset": str(int(reset)),
        UNIFIED + "7d-utilization": "0.4",
        UNIFIED + "7d-reset": str(int(reset) + 500_000),
        "x-should-retry": "false",
    }


def limited(reset: float, times: int | None = None, then: Any = "ok") -> dict[str, Any]:
    """A request that the API refuses because of the 5-hour limit."""
    return {**fail(429, times=times, then=then), "headers": limit_headers(reset)}
