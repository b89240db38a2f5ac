"""`python -m claude_code_mcp` is the command `claude-code-mcp`."""

import sys

from .cli.main import main

sys.exit(main())
