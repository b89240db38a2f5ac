"""The plain start; the instant greeting takes its place."""


def greet() -> int:
    """Serves MCP on stdio."""
    import asyncio  # noqa: PLC0415

    from .app import log_to_stderr, run_stdio  # noqa: PLC0415
    from .config import load_settings  # noqa: PLC0415

    settings = load_settings()
    log_to_stderr(settings)
    asyncio.run(run_stdio(settings))
    return 0
