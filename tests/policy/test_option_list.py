"""The words of a program are understood by a list of its options, or not at all."""

import pytest

from claude_code_mcp.policy.shell import FileGlob, read_arguments

LIST = "-ab -kt: -u? -N --all --key="


@pytest.mark.parametrize(
    ("words", "options", "operands"),
    [
        (["-ab", "x"], [("-a", ""), ("-b", "")], ["x"]),
        (["-k", "1", "x"], [("-k", "1")], ["x"]),
        (["-ak1", "x"], [("-a", ""), ("-k", "1")], ["x"]),
        (["-uno", "x"], [("-u", "no")], ["x"]),
        (["-u", "x"], [("-u", "")], ["x"]),
        (["-5", "-", "x"], [("-5", "")], ["-", "x"]),
        (["--all", "--all=x"], [("--all", ""), ("--all", "x")], []),
        (["--key=1", "--key", "2"], [("--key", "1"), ("--key", "2")], []),
        (["--", "-z", "--zz"], [], ["-z", "--zz"]),
        (["-k"], [("-k", "")], []),
        (["-k", "-1"], [("-k", "-1")], []),
    ],
)
def test_listed_options_are_read(words: list[str], options: list[tuple[str, str]], operands: list[str]) -> None:
    arguments = read_arguments(words, LIST)
    assert arguments is not None
    assert (list(arguments.options), list(arguments.operands)) == (options, operands)


@pytest.mark.parametrize(
    "words",
    [
        ["-z"],
        ["-az"],
        ["--zz"],
        ["--al"],
        ["--ke=1"],
        ["x", "-z"],
        ["-k", "-z"],
        ["--key", "--"],
        ["-k", "--", "-z"],
        ["-\u00e4"],
        [FileGlob("*")],
        [FileGlob("?x")],
        [FileGlob("-*")],
        [FileGlob("-a*")],
        [FileGlob("--a*")],
        ["-k", FileGlob("a*")],
    ],
)
def test_what_is_not_listed_is_not_understood(words: list[str]) -> None:
    assert read_arguments(words, LIST) is None


def test_names_of_files_are_understood_where_they_cannot_be_options() -> None:
    for words in (["src/*"], ["a?"], ["./*"], ["--", "*"], ["--key=*"]):
        assert read_arguments([FileGlob(word) if "*" in word else word for word in words], LIST) is not None
    assert read_arguments([FileGlob("*")], LIST, any_names=True) is not None
    arguments = read_arguments([FileGlob("--key=a*")], LIST)
    assert arguments is not None
    assert isinstance(arguments.values("--key")[0], FileGlob)


def test_the_first_operand_can_end_the_options() -> None:
    arguments = read_arguments(["-a", "x", "-z", "--zz"], LIST, leading=True)
    assert arguments is not None
    assert arguments.operands == ("x", "-z", "--zz")


def test_an_option_behind_an_operand_is_told() -> None:
    first, later = read_arguments(["-a", "x"], LIST), read_arguments(["x", "-a"], LIST)
    assert first is not None
    assert later is not None
    assert (first.options_first, later.options_first) == (True, False)
