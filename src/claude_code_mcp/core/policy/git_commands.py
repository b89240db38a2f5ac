"""Git and rules: options that no wildcard covers, and settings that keep git from running what a session wrote.

`Bash(git diff *)` says which command of git may run. With some options any of them writes a file or runs a program:
`git diff --output=FILE`, `git -c KEY=VALUE`. Such a word is allowed only by a rule that spells it out.
"""

from collections.abc import Mapping, Sequence

_GLOBAL = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"})
"""Options before the name of a command with which git still does only what the command says."""
_LONG = (
    *("--output", "--output-directory", "--ext-diff", "--textconv", "--filters", "--open-files-in-pager", "--exec"),
    *("--exec-path", "--config", "--config-env", "--git-dir", "--work-tree", "--upload-pack", "--receive-pack"),
    *("--template", "--separate-git-dir", "--interactive", "--edit", "--show-signature", "--gpg-sign", "--paginate"),
    *("--extcmd", "--sendmail-cmd", "--smtp-server", "--to-cmd", "--cc-cmd", "--header-cmd", "--access-hook"),
)
_SHORT = frozenset("oOcCx")
"""`format-patch -o`, `archive -o`, `grep -O`, `clone -c`, `rebase -x`."""
_SETTINGS = {"safe.bareRepository": "explicit", "diff.autoRefreshIndex": "false"}


def option_to_ask_about(words: Sequence[str], spelled_out: int = 1) -> str | None:
    """The first word of a git command with which it may write a file or run a program; None otherwise. `words`
    begins with `git`; the first `spelled_out` words stand in the rule itself and are not checked. Git takes
    abbreviated options, and some of its commands take options behind `--`."""
    command = next((word for word in words[1:] if not word.startswith("-")), "")
    short = _SHORT | {"u"} if command == "clone" else _SHORT  # `clone -u` is `--upload-pack`
    command_named = any(not word.startswith("-") for word in words[1:spelled_out])
    for word in words[spelled_out:]:
        if not word.startswith("-"):
            command_named = True
        elif word.startswith("--"):
            name = word.partition("=")[0]
            known = command_named or name in _GLOBAL
            if name != "--" and (not known or any(option.startswith(name) for option in _LONG)):
                return word
        elif (not command_named and word not in _GLOBAL) or short & set(word):
            return word
    return None


def git_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to an environment for sessions under rules on commands.

    Git then takes no directory for a repository that only looks like one (a session could write it, with a program in
    its configuration), and does not write the index when it is asked for a state, which would call a hook.
    """
    # Behind those that are there: the operator's own settings stay, and ours come last and count.
    inherited = environment.get("GIT_CONFIG_COUNT", "")
    count = int(inherited) if inherited.isascii() and inherited.isdigit() and len(inherited) < 5 else 0
    variables = {"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_COUNT": str(count + len(_SETTINGS))}
    for number, (name, value) in enumerate(_SETTINGS.items(), count):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
