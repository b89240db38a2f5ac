"""Commands are read with certainty or not at all."""

import shlex

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.policy.shell import _RESERVED, MAX_COMMAND, FileGlob, read_loosely, read_strictly
from tests.support.tables import every_row


@every_row(
    ("text", "commands"),
    [
        ("git diff", [("git", "diff")]),
        ("git diff HEAD~1 HEAD^ a@b", [("git", "diff", "HEAD~1", "HEAD^", "a@b")]),
        ("git diff && git log", [("git", "diff"), ("git", "log")]),
        ("a; b | c || d & e\nf |& g", [("a",), ("b",), ("c",), ("d",), ("e",), ("f",), ("g",)]),
        ("echo 'a; b' \"c && d\"", [("echo", "a; b", "c && d")]),
        ("g\"i\"t d'if'f", [("git", "diff")]),
        ("git diff 2>&1 >/dev/null", [("git", "diff")]),
        ("git diff &>/dev/null; b 2> /dev/null", [("git", "diff"), ("b",)]),
        ("  \t ", []),
        ('echo "a\\.b \\"c\\" \\$d \\\\"', [("echo", 'a\\.b "c" $d \\')]),
        ("find . \\( -name a \\) \\;", [("find", ".", "(", "-name", "a", ")", ";")]),
    ],
)
def test_a_plain_line_is_its_simple_commands(text: str, commands: list[tuple[str, ...]]) -> None:
    assert read_strictly(text) == commands


@every_row(
    ("text", "globs"),
    [
        ("ls *.py 'a*' \"b?\" c\\*", ["*.py"]),
        ("ls a?b src/*", ["a?b", "src/*"]),
        ("ls ''* a", ["*"]),
        ("ls a", []),
    ],
)
def test_a_word_that_stands_for_names_of_files_is_marked(text: str, globs: list[str]) -> None:
    commands = read_strictly(text)
    assert commands is not None
    assert [word for word in commands[0] if isinstance(word, FileGlob)] == globs


@every_row(
    "text",
    [
        "git diff $(rm x)",
        'git diff "$(rm x)"',
        "git diff `rm x`",
        'git diff "`rm x`"',
        "git diff $HOME",
        "git diff ${IFS}x",
        "(git diff)",
        "{ git diff; }",
        "git diff > out",
        "git diff >/dev/null/../../tmp/out",
        "git diff >/dev/nullify",
        "git diff < in",
        "git diff <(rm x)",
        "cat <<EOF\nrm\nEOF",
        "git di\\ff",
        "git diff \\\n rm",
        "g* diff",
        "git diff [ab]",
        "git diff *(e:x:)",
        "test -f *",
        "'[' -v 'a[$(rm x)]' ']'",
        'git diff "\\!"',
        'git diff "a\\\nb"',
        "git diff a\\b",
        "git diff {a,b}",
        "cat ~/.ssh/id",
        "make X=~/x",
        "! git diff",
        "git diff # comment",
        "A=b git diff",
        "A+=b git diff",
        "a[0]=b git diff",
        "git diff 'unended",
        'git diff "unended',
        "git diff \x00 rm",
        "git diff \r rm",
        "git diff \u202e rm",
    ],
)
def test_complex_command_is_not_parsed(text: str) -> None:
    assert read_strictly(text) is None


@every_row(
    "text",
    [
        "rm x",
        "git diff; rm x",
        "git diff&&rm x",
        "git diff|rm x",
        "git diff\nrm x",
        "git diff $(rm x)",
        'git diff "$(rm x)"',
        "git diff `rm x`",
        "(rm x)",
        "{ rm x; }",
        "A=b rm x",
        "\\rm x",
        "'r'm x",
        'r""m x',
        "r\\\nm x",
        "/bin/rm x",
        "sudo -u bob rm x",
        "env -i A=b rm x",
        "nohup nice -n 5 rm x",
        "timeout 5 rm x",
        "find . -exec rm x",
        "ls | xargs -n1 rm x",
        "sh -c 'rm x'",
        'bash -lc "cd /; rm x"',
        "sudo bash -c \"sh -c 'rm x'\"",
        "eval 'rm x'",
        "if true; then rm x; fi",
        "while rm x; do :; done",
        "diff <(rm x) y",
        "echo > out; rm x",
    ],
)
def test_whatever_might_be_run_is_seen(text: str) -> None:
    assert ("rm", "x") in {run[:2] for run in read_loosely(text)}


@every_row("text", ["git rm x", "echo 'rm x'", "git commit -m 'drop; rm x'", "ls rm"])
def test_a_word_that_is_not_run_is_no_command(text: str) -> None:
    assert "rm" not in {run[0] for run in read_loosely(text)}


def test_a_command_behind_many_options_is_seen() -> None:
    assert ("rm", "x") in read_loosely("env " + "-i " * 5_000 + "rm x")


def test_a_command_that_is_too_long_is_unclear_and_its_beginning_is_seen() -> None:
    longest = "rm x;" + "a" * (MAX_COMMAND - 5)
    assert read_strictly(longest) == [("rm", "x"), ("a" * (MAX_COMMAND - 5),)]
    assert read_strictly(longest + "a") is None
    assert ("rm", "x") in read_loosely(longest + "a")
    assert ("rm", "x") in read_loosely("a" * (MAX_COMMAND - 5) + ";rm x")


@every_row("opening", ["$(", "(", "`", "{ ", "sh -c '", 'bash -c "', "eval 'sh -c \"", "if ", "\\\\"])
def test_endlessly_nested_constructs_are_handled(opening: str) -> None:
    text = (opening * MAX_COMMAND)[: MAX_COMMAND - 6] + ";rm x"  # an even number of backslashes
    read_strictly(text)
    assert ("rm", "x") in {run[:2] for run in read_loosely(text)}


PLAIN_WORDS = st.from_regex(r"[a-z][a-zA-Z0-9_./ -]{0,8}", fullmatch=True).filter(lambda word: word not in _RESERVED)


@given(st.lists(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4), min_size=1, max_size=4))
def test_quoted_words_come_back_as_they_were(commands: list[list[str]]) -> None:
    """Whatever is read is what a shell would run: words that were quoted for it come back one by one."""
    read = read_strictly(" ; ".join(shlex.join(words) for words in commands))
    assert read is None or read == [tuple(words) for words in commands]


@given(st.lists(st.lists(PLAIN_WORDS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_plain_and_quoted_words_are_always_read(commands: list[list[str]]) -> None:
    read = read_strictly(" ; ".join(shlex.join(words) for words in commands))
    assert read == [tuple(words) for words in commands]


@given(st.text(alphabet="rm x;&|$()`'\"\\<>\n{}=~#", max_size=30))
def test_any_text_can_be_read(text: str) -> None:
    read_strictly(text)
    read_loosely(text)
