"""What is printed of a line that comes again and again while it is written."""

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.client.printed_lines import PrintedLines
from claude_code_mcp.core.model.text import visible


@given(st.lists(st.text(st.characters(exclude_characters="\n\r"), min_size=1), min_size=1), st.data())
def test_every_line_is_printed_once_however_it_is_cut(lines: list[str], data: st.DataObject) -> None:
    printed, output = PrintedLines(), ""
    for line in lines:
        for end in sorted(data.draw(st.lists(st.integers(1, len(line)), max_size=4))):
            output += printed.writing(line[:end])
        output += printed.line(line)
    if output != "".join(f"{visible(line)}\n" for line in lines):
        # A joiner means something else once the next letter is there: then the line is printed whole again.
        assert all(f"{visible(line)}\n" in output for line in lines)
        assert any(ord(letter) > 0x2FF for line in lines for letter in line)


def test_the_rest_of_a_line_follows_what_was_printed_in_between() -> None:
    printed = PrintedLines()
    assert printed.writing("One two") == "One two"
    assert printed.other_line("[tool] Run: ls") == "\n[tool] Run: ls\n"
    assert printed.writing("One two three") == " three"
    assert printed.break_line() == "\n"
    assert printed.break_line() == ""
    assert printed.line("One two three") == "", "its line break is printed already"
    assert printed.line("Next.") == "Next.\n"


def test_an_answer_that_begins_again_is_printed_from_its_beginning() -> None:
    printed = PrintedLines()
    assert printed.writing("One two") == "One two"
    assert printed.writing("Other words") == "\nOther words"
    assert printed.line("Other") == "\nOther\n", "the printed text is not part of the answer"


def test_a_new_answer_does_not_continue_one_that_was_interrupted() -> None:
    printed = PrintedLines()
    assert printed.writing("One two") == "One two"
    assert printed.new_answer() == "\n"
    assert printed.line("One two three") == "One two three\n"


def test_a_shorter_text_takes_nothing_back() -> None:
    """The server holds the end of a line back while it may be the beginning of a secret."""
    printed = PrintedLines()
    assert printed.writing("The key is sk") == "The key is sk"
    assert printed.writing("The key is ") == ""
    assert printed.line("The key is sky.") == "y.\n"
