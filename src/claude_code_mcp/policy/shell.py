"""Reads a shell command as far as can be done with certainty.

Two readings, for two uses. `read_strictly` takes a small part of the language in which bash, dash and zsh agree, and
gives the simple commands of a line, or nothing: what an allowance rests on must be read like this. `fragments` cuts a
text at everything that could begin a command, and guesses; it serves refusals, where a guess too many does no harm.

What is read strictly, with everything else left out on purpose:

- words of letters, digits and the characters of `_PLAIN`, `'…'`, and `"…"` without `$`, backtick, `\\` and `!`; nothing
  that could be a comment, a home directory, an assignment, a reserved word or a pattern for file names
- no words that a command of the shell itself would evaluate
- `;`, `&`, `|`, `|&`, `&&`, `||` behind a command, and line ends
- `2>&1` and its like, and redirections to and from `/dev/null`, at the end of a command: `sh` takes `a &>/dev/null b`
  for two commands

A command of more than `LONGEST_COMMAND` characters is unclear as a whole. Both take time in proportion to the length.
"""

import re

LONGEST_COMMAND = 64 << 10
_PLAIN = r"A-Za-z0-9_./,:=+@%^~#\-"
_PIECE = re.compile(rf"""(?:[{_PLAIN}]|[^\W\x00-\x7f])+|'(?P<single>[^']*)'(?!')|"(?P<double>[^"$`\\!]*)\"""")
_NO_START = re.compile(r"[#~^=]|[^'\" \t\n;&|]*?[=:]~")
_BLANKS = re.compile(r"[ \t]+")
_OPERATOR = re.compile(r"&&|\|\||\|&|[;&|\n]")
_WANTS_MORE = ("&&", "||", "|", "|&")
_REDIRECTION = re.compile(r"(?:[12]?>&[12]|0?<[ \t]*/dev/null|(?:[12]|&)?>>?[ \t]*/dev/null)(?=[ \t\n;&|]|\Z)")
_RESERVED = frozenset(
    {
        *("if", "then", "else", "elif", "fi", "for", "in", "while", "until", "do", "done", "case", "esac", "select"),
        *("function", "coproc", "repeat", "foreach", "end", "always", "nocorrect", "noglob", "-"),
    }
)
_EVALUATING = frozenset(
    {
        *("test", "printf", "print", "read", "let", "declare", "typeset", "local", "export", "readonly", "integer"),
        *("float", "unset", "set", "shift", "wait", "getopts", "mapfile", "readarray", "ulimit", "return", "exit"),
        *("break", "continue", "compgen", "vared", "zparseopts", "zstyle"),
    }
)
"""Built into shells, they evaluate some of their words: `test -v 'a[$(rm x)]'` runs `rm`."""
_EVALUATED = re.compile(r"[$`]")
_BREAKS = re.compile(r"[;&|\n`(){}<>$]+")
WITHOUT_QUOTES = str.maketrans("", "", "'\"\\")

Words = tuple[str, ...]


def read_strictly(text: str) -> list[Words] | None:
    """The simple commands in a text, none of them with variables set before it; None if anything is unclear."""
    if len(text) > LONGEST_COMMAND or not text.replace("\n", "").replace("\t", "").isprintable():
        return None
    commands: list[Words] = []
    words: list[str] = []
    operator = ""
    redirected = False
    position = 0
    while position < len(text):
        if blanks := _BLANKS.match(text, position):
            position = blanks.end()
        elif words and (redirection := _REDIRECTION.match(text, position)):
            if text[position - 1] not in " \t":
                return None  # zsh takes the number of `1&>` for that of a descriptor
            redirected = True
            position = redirection.end()
        elif found := _OPERATOR.match(text, position):
            if words:
                commands.append(tuple(words))
                operator = found[0]
            elif found[0] != "\n":
                return None  # an operator with no command before it
            words, redirected = [], False
            position = found.end()
        else:
            word = None if redirected else _word(text, position)
            if word is None:
                return None
            words.append(word[0])
            position = word[1]
    if words:
        commands.append(tuple(words))
    elif operator in _WANTS_MORE:
        return None
    return commands if all(_is_simple(command) for command in commands) else None


def _word(text: str, position: int) -> tuple[str, int] | None:
    """The word that begins here and where it ends; None if it is unclear what it means."""
    if _NO_START.match(text, position):
        return None
    parts: list[str] = []
    while position < len(text) and text[position] not in " \t\n;&|":
        piece = _PIECE.match(text, position)
        if piece is None:
            return None
        parts.append(piece[piece.lastgroup] if piece.lastgroup else piece[0])
        position = piece.end()
    return "".join(parts), position


def _is_simple(command: Words) -> bool:
    """Whether the first word names a program, and the others are only words to it."""
    name = command[0]
    evaluated = name in _EVALUATING and any(map(_EVALUATED.search, command))
    return bool(name) and "=" not in name and name not in _RESERVED and not evaluated


def fragments(text: str) -> list[Words]:
    """The beginning of a text cut at everything that could begin a command, quotes and escapes ignored."""
    pieces = _BREAKS.split(text[:LONGEST_COMMAND].replace("\\\n", ""))
    return [tuple(piece.translate(WITHOUT_QUOTES).split()) for piece in pieces]
