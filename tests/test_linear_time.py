"""Text that a model or a stranger wrote takes steps in proportion to its length, whatever it is made of.

Nothing here is measured in time. Regular expressions, all there are, are run by a matcher that counts; of the functions
that read such text, the lines and calls of Python are counted. What one call of the standard library takes beyond that
is measured by `python -m benchmarks.linear_time`, which `make soak` runs.
"""

import ast
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import claude_code_mcp
from benchmarks.linear_time import (
    ENDS,
    HANDLERS,
    PIECES,
    PLAIN,
    READERS,
    TRANSCRIPT_ENDS,
    TRANSCRIPT_PLACES,
    TRANSCRIPTS,
    Handle,
    crowded_transcript,
    read_transcript,
    texts,
    transcripts_with,
    without_longest_command,
)

from .support.regex_steps import StepCounter, TooManySteps

SOURCE = Path(claude_code_mcp.__file__).parent
TIMES = 3
MAX_RATIO = 1.5
"""How many times the growth of the text the steps may grow; it would be three with the square of the length."""


def grows_superlinearly(small: str, large: str, few: int, many: int, beside: int) -> bool:
    """Whether the steps grow faster than the text, beyond some that come only with longer text."""
    return many > beside + MAX_RATIO * few * len(large) / len(small)


SOME_ENDS = pytest.mark.parametrize(
    "ends",
    # The end at which most expressions and readers that go on to the end of a text have gone on in vain.
    [ENDS[1:2], pytest.param((ENDS[0], *ENDS[2:]), marks=pytest.mark.soak)],
    ids=["some", "others"],
)


def pairs(size: int, pieces: Mapping[str, str], ends: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """A short and a long text of each shape with one of these ends, and of everything together."""
    for (shape, small), (_, large) in zip(texts(size, pieces), texts(TIMES * size, pieces), strict=True):
        if shape == "everything" or shape.endswith(tuple(f" {end!r}" for end in ends)):
            yield shape, small, large


# -- regular expressions ----------------------------------------------------------------------------------------------

SHORT = 28
BESIDE = 1000
SCANNING = {"search", "sub", "subn", "finditer", "findall", "split"}
"""Methods that try an expression at every place of a text; the others try it at one."""
AT_ONE_PLACE = {("cli/mcp/configure.py", "_VARIABLE"), ("cli/mcp/configure.py", "_HEADER")}
"""Expressions that are used by another name, with `match`."""


@cache
def expressions() -> dict["re.Pattern[str]", bool]:
    """Every regular expression of the product, and whether it is searched for or tried at one place only."""
    found: dict[re.Pattern[str], bool] = {}
    for module in modules():
        file = Path(str(module.__file__))
        held = [
            (name, pattern)
            for name, value in list(vars(module).items())
            for pattern in patterns_in(value, module.__name__)
        ]
        source = file.read_text("utf-8")
        if not held and "import re\n" not in source:
            continue  # to parse all modules takes seconds
        tree = ast.parse(source)
        used = methods_in(tree)
        for name, pattern in held:
            unknown = set() if (file.relative_to(SOURCE).as_posix(), name) in AT_ONE_PLACE else SCANNING
            found[pattern] = found.get(pattern, False) or bool(SCANNING & used.get(name, unknown))
        for text, method in written_in_place(tree):
            pattern = re.compile(text)
            found[pattern] = found.get(pattern, False) or method in SCANNING
    return found


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(claude_code_mcp.__path__, "claude_code_mcp."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def patterns_in(value: Any, module: str, depth: int = 0) -> Iterator["re.Pattern[str]"]:
    """The expressions in a value of a module, in its collections and in its classes; those of bytes as of text."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
        else:
            yield re.compile(value.pattern.decode("latin-1"), value.flags | re.ASCII)
    elif depth > 3:
        return
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from patterns_in(item, module, depth + 1)
    elif isinstance(value, dict):
        yield from patterns_in(list(value.values()), module, depth + 1)
    elif isinstance(value, type) and value.__module__ == module:
        yield from patterns_in(list(vars(value).values()), module, depth + 1)
    elif hasattr(value, "__dataclass_fields__"):
        yield from patterns_in([getattr(value, name, None) for name in value.__dataclass_fields__], module, depth + 1)


def methods_in(tree: ast.AST) -> dict[str, set[str]]:
    """Which methods of which names a module uses."""
    used: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in SCANNING | {"match", "fullmatch"}:
                used.setdefault(name, set()).add(method)
    return used


def written_in_place(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The expressions of calls such as `re.sub`, and the method."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[ast.Constant(value=text), *_]
            ):
                if method not in ("compile", "escape"):
                    yield str(text), method


def count(pattern: "re.Pattern[str]", text: str, *, scans: bool) -> int:
    counter = StepCounter(pattern)
    if scans:
        counter.scan(text)
    else:
        counter.match(text)
        counter.match(text, full=True)
    return counter.steps


def problems_of(pattern: "re.Pattern[str]", ends: Sequence[str], *, scans: bool) -> Iterator[str]:
    for shape, small, large in pairs(SHORT, PIECES, ends):
        if (many := count(pattern, large, scans=scans)) <= BESIDE:
            continue
        few = count(pattern, small, scans=scans)
        if grows_superlinearly(small, large, few, many, BESIDE):
            yield f"{pattern.pattern!r} on {shape}: {few} steps for {len(small)} characters, {many} for {len(large)}"


@SOME_ENDS
def test_every_regular_expression_takes_steps_in_proportion_to_the_text(ends: Sequence[str]) -> None:
    assert len(expressions()) > 100
    found = (problems_of(pattern, ends, scans=scans) for pattern, scans in expressions().items())
    assert [problem for problems in found for problem in problems] == []


@given(st.data(), st.lists(st.sampled_from([*PIECES.values(), "x", "-", "}", "\n"]), max_size=4).map("".join))
def test_the_counting_matcher_finds_what_the_engine_finds(data: st.DataObject, text: str) -> None:
    pattern = data.draw(st.sampled_from(sorted(expressions(), key=lambda pattern: pattern.pattern)))
    assert StepCounter(pattern).scan(text) == [match.span() for match in pattern.finditer(text)]
    whole = pattern.fullmatch(text)
    assert StepCounter(pattern).match(text, full=True) == (whole and whole.end())


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a*b", "a"),
        (r'"(?:[^"\\]|\\.)*"', '\\"'),
        (r"[\d.]+\Z", "1"),
        (r"\$\{([A-Z]+)(?::-([^}]*))?\}", "${A:-"),
        (r"(?:a|b)+c", "ab"),
        (r"(x+x+)+y", "x"),
    ],
)
def test_an_expression_that_reads_its_text_again_from_many_places_is_found(pattern: str, text: str) -> None:
    try:
        few, many = (count(re.compile(pattern), text * length + "-", scans=True) for length in (SHORT, TIMES * SHORT))
    except TooManySteps:
        return
    assert grows_superlinearly("x" * SHORT, "x" * SHORT * TIMES, few, many, BESIDE)


# -- functions --------------------------------------------------------------------------------------------------------

LONG = 80
BESIDE_FUNCTIONS = 2000
CROWD = 100


def steps_of(handle: Callable[[], object]) -> int:
    """The lines of our own code that run, and all calls, those of the standard library among them."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        steps += 1
        return trace if frame.f_code.co_filename.startswith(str(SOURCE)) else None

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal steps
        steps += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        handle()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return steps


def problem_with(handle: Handle, shape: str, small: str, large: str) -> list[str]:
    if (many := steps_of(partial(handle, large))) <= BESIDE_FUNCTIONS:
        return []
    few = steps_of(partial(handle, small))
    if not grows_superlinearly(small, large, few, many, BESIDE_FUNCTIONS):
        return []
    return [f"{shape}: {few} steps for {len(small)} characters, {many} for {len(large)}"]


LIKE_OTHERS = {"words of git", "words of printf", "refusal as text", "describe a command"}
"""Handlers that go through the code of another one."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in LIKE_OTHERS else name for name in HANDLERS]
)
@SOME_ENDS
def test_text_is_handled_in_steps_in_proportion_to_its_length(name: str, ends: Sequence[str]) -> None:
    problems = []
    with without_longest_command():
        for shape, small, large in pairs(LONG, PIECES, ends):
            problems += problem_with(HANDLERS[name], shape, small, large)
    assert problems == []


@pytest.mark.parametrize(
    ("place", "end"),
    # An end that was cut off is read by the same code wherever the text is, and so is text at the beginning.
    [
        pytest.param(
            place,
            end,
            marks=[pytest.mark.soak] if place in (1, 2) or (name == "cut" and place) else [],
            id=f"{place}-{name}",
        )
        for place in range(TRANSCRIPT_PLACES)
        for name, end in TRANSCRIPT_ENDS.items()
    ],
)
@SOME_ENDS
def test_transcripts_are_read_in_steps_in_proportion_to_their_length(
    place: int, end: str, ends: Sequence[str], tmp_path: Path
) -> None:
    problems = []
    read = partial(read_transcript, tmp_path / "transcript.jsonl")
    for shape, small, large in pairs(LONG, {**PLAIN, **TRANSCRIPTS}, ends):
        few, many = (steps_of(partial(read, list(transcripts_with(text))[place] + end)) for text in (small, large))
        if grows_superlinearly(small, large, few, many, BESIDE_FUNCTIONS):
            problems.append(f"{shape}: {few} steps, {many} for {TIMES} times as much")
    assert problems == []


@pytest.mark.parametrize("reader", READERS)
def test_many_of_everything_in_a_transcript_are_read_in_proportion_to_its_length(reader: str, tmp_path: Path) -> None:
    counts = []
    for number, crowd in enumerate((CROWD, TIMES * CROWD)):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(crowded_transcript(crowd))
        counts.append((path.stat().st_size, steps_of(partial(READERS[reader], str(path)))))
    (short, few), (long, many) = counts
    assert many <= BESIDE_FUNCTIONS + MAX_RATIO * few * long / short


def test_quadratic_function_is_detected() -> None:
    def quadratic(text: str) -> None:
        for at in range(len(text)):
            for _ in range(at // 5):
                text.count("b")

    assert problem_with(quadratic, "letters", "a" * LONG, "a" * LONG * TIMES)
