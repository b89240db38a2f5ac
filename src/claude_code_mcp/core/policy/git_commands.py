"""Rules for git: options that no wildcard covers, and settings that keep git from running programs of a session.

`Bash(git diff *)` allows one git command. Some options make any git command write a file or run a program:
`git diff --output=FILE`, `git -c KEY=VALUE`. Such a word is allowed only by a rule that contains it literally.
"""

from collections.abc import Mapping, Sequence

_GLOBAL = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs", "--no-replace-objects"})
"""Options before the command name that do not change what git may write or run."""
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
    """The first word that may make a git command write a file or run a program; None if there is none. `words` begins
    with `git`; the first `spelled_out` words are in the rule itself and are not checked. Abbreviated options and
    options after `--` are recognized too, because git accepts them."""
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
    """Variables to add to the environment of sessions that have rules on commands.

    With them, git does not treat a bare directory that a session wrote as a repository, whose configuration could name
    a program, and `git status` does not write the index, which would run a hook.
    """
    # Appended: the operator's settings stay, and ours take precedence.
    inherited = environment.get("GIT_CONFIG_COUNT", "")
    count = int(inherited) if inherited.isascii() and inherited.isdigit() and len(inherited) < 5 else 0
    variables = {"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_COUNT": str(count + len(_SETTINGS))}
    for number, (name, value) in enumerate(_SETTINGS.items(), count):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables
