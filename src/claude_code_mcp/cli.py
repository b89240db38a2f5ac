"""The command line. Every command imports what it needs only when it runs."""

import sys


def main() -> int:
    from claude_code_mcp.app import log_to_stderr, run_http, run_stdio
    from claude_code_mcp.config import load_settings
    import asyncio

    s = load_settings()
    log_to_stderr(s)
    if len(sys.argv) > 2 and sys.argv[1] == "serve":
        asyncio.run(run_http(s, sys.argv[3]))
    else:
        asyncio.run(run_stdio(s))
    return 0


if __name__ == "__main__":
    sys.exit(main())
