"""The environment of child processes. Everything that starts a program builds its environment here.

Our own variables contain secrets (tokens) and the locations of secrets, so no child gets them: no session, no server of
the hub, no helper. Two variables tie a child to us and are not secret: the mark by which leftovers are found, and the
nesting depth. A session that may run a nested server gets two more: the maximum depth and the state directory, which
all servers of one user must share.

The start on stdio imports this module before its first answer, so it imports nothing itself.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_PREFIX = "CLAUDE_CODE_MCP_"
MARK = f"{OWN_PREFIX}MARK"
"""Set for every child: identifies the process of ours that it belongs to. See `leftovers.py`."""
DEPTH = f"{OWN_PREFIX}DEPTH"
"""Set for every child: the number of our servers between it and the person."""
MAX_DEPTH = f"{OWN_PREFIX}MAX_DEPTH"
"""How many servers may be nested in each other's sessions."""
STATE_DIR = f"{OWN_PREFIX}STATE_DIR"

_INHERITED = frozenset({MARK, DEPTH})

# Set by a Claude Code around us for its own children. With them a session would take itself for a part of that one, and
# could use its token and its sockets.
_OUTER_SESSION = frozenset(
    {
        "CLAUDECODE",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SESSION_ACCESS_TOKEN",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_CODE_SSE_PORT",
        "CLAUDE_CODE_PARENT_SESSION_ID",
        "CLAUDE_CODE_REMOTE",
        "CLAUDE_CODE_CHILD_SESSION",
        "CLAUDE_CODE_MESSAGING_SOCKET",
        "CLAUDE_CODE_MESSAGING_TOKEN",
        "CLAUDE_PROJECT_DIR",
    }
)

_OF_ONE_WINDOW = frozenset(
    {
        *("_", "SHLVL", "PWD", "OLDPWD", "PS1", "PROMPT", "PROMPT_COMMAND", "HISTFILE", "HISTSIZE", "LS_COLORS"),
        *(
            "TERM",
            "TERMINFO",
            "COLORTERM",
            "COLUMNS",
            "LINES",
            "TTY",
            "GPG_TTY",
            "VTE_VERSION",
            "STY",
            "TMUX",
            "TMUX_PANE",
        ),
        *("WINDOWID", "WINDOWPATH", "SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "SECURITYSESSIONID", "SESSIONNAME"),
        *("DESKTOP_STARTUP_ID", "XDG_ACTIVATION_TOKEN", "GIO_LAUNCHED_DESKTOP_FILE", "GIO_LAUNCHED_DESKTOP_FILE_PID"),
        *("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "MANAGERPID", "XPC_FLAGS", "XPC_SERVICE_NAME"),
        *("__CFBundleIdentifier", "CURSOR_TRACE_ID", MARK),
    }
)
_OF_ONE_WINDOW_BY_PREFIX = (
    *("TERM_", "XDG_SESSION_", "VSCODE_", "ELECTRON_", "ITERM_", "KITTY_", "WEZTERM_", "ALACRITTY_", "GHOSTTY_"),
    *("KONSOLE_", "GNOME_TERMINAL_", "WT_"),
)


def child_environment(base: "Mapping[str, str]") -> dict[str, str]:
    """The base without our own variables and without the variables that an outer Claude Code session set for itself.
    The depth is one more than ours, whatever the base says."""
    kept = {name: value for name, value in base.items() if not is_own(name) and name not in _OUTER_SESSION}
    return {**kept, DEPTH: str(depth(base) + 1)}


def significant(environment: "Mapping[str, str]") -> dict[str, str]:
    """The variables that distinguish two environments: everything a child gets, except variables that describe one
    window, terminal or start of a program. Unknown variables count, because they may contain credentials."""
    return {
        name: value
        for name, value in child_environment(environment).items()
        if name not in _OF_ONE_WINDOW and not name.startswith(_OF_ONE_WINDOW_BY_PREFIX)
    }


def expand_home(path: str, environment: "Mapping[str, str]") -> str:
    """The path with `~` replaced by the home directory of this environment, which may differ from our process's."""
    home = environment.get("HOME") or environment.get("USERPROFILE")
    return home + path[1:] if home and (path == "~" or path.startswith(("~/", "~\\"))) else path


def build_environment(base: "Mapping[str, str]", extra: "Mapping[str, str]", mark: str) -> dict[str, str]:
    """The environment of a child: what any child may have from the base, then the caller's variables, then the mark and
    the depth, which no caller can replace."""
    clean = child_environment(base)
    return {**clean, **extra, MARK: mark, DEPTH: clean[DEPTH]}


def is_own(name: str) -> bool:
    """Whether a variable is one of ours that no child may get. Case is ignored on Windows."""
    name = name.upper()
    return name.startswith(OWN_PREFIX) and name not in _INHERITED


def for_nested_servers(base: "Mapping[str, str]", max_depth: int, state_dir: str) -> dict[str, str]:
    """Additional variables of a session in which our servers may be nested."""
    return {MAX_DEPTH: str(max_depth), STATE_DIR: state_dir} if max_depth > depth(base) else {}


def depth(environment: "Mapping[str, str]") -> int:
    """How deep this process is nested: 0 if a person or a client started it. An invalid number counts as nested."""
    value = environment.get(DEPTH, "")
    if value:
        return _small_number(value, otherwise=1)
    return 1 if environment.get(MARK) else 0


def too_deep(environment: "Mapping[str, str]") -> bool:
    """Whether a server that starts here must offer nothing."""
    return depth(environment) > _small_number(environment.get(MAX_DEPTH, ""), otherwise=0)


def _small_number(text: str, otherwise: int) -> int:
    # Few digits: the text comes from outside, and `int` is slow with a long one and refuses thousands of digits.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else otherwise
