"""How much work a regular expression is, counted in steps and not in time.

A pattern is run by a plain backtracking matcher that takes the same decisions in the same order as Python's own engine
(`re`), and counts every character that it looks at and every place that it goes back to. Twice the text must not be
more than about twice the steps. The engine has shortcuts that this matcher does not know, so it never does more.
"""

import re
import re._compiler as sre_compile  # type: ignore[import-not-found]
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parse  # type: ignore[import-not-found]
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
_ONE_CHARACTER = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)
State = tuple[int, int, tuple[int, ...]]
"""An instruction, a place in the text, and places that are remembered: where each loop began its last round, where each
group that is referred to began and ended."""


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction of a program; `to` and `otherwise` are instructions, `inner` is a program of its own."""

    kind: str
    fits: Callable[[str], bool] | None = None
    to: int = 0
    otherwise: int = 0
    least: int = 0
    most: int = 0
    greedy: bool = True
    inner: "Program | None" = None
    behind: int = 0
    pattern: "re.Pattern[str] | None" = None


@dataclass(slots=True)
class Memory:
    """How many places of a text are remembered; `groups` has the first of the two of each group that is referred to."""

    places: int = 0
    groups: dict[int, int] = field(default_factory=dict)

    def place(self, count: int = 1) -> int:
        self.places += count
        return self.places - count


@dataclass(slots=True)
class Program:
    """The steps of a pattern, or of a part of it that is matched by itself and shares what is remembered."""

    steps: list[Step] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)

    def add(self, kind: str, **fields: Any) -> int:
        self.steps.append(Step(kind, **fields))
        return len(self.steps) - 1

    def change(self, index: int, **fields: Any) -> None:
        old = self.steps[index]
        values = {name: getattr(old, name) for name in Step.__slots__}
        self.steps[index] = Step(**{**values, **fields})


class TooManySteps(Exception):
    """The matcher has taken more steps than it was allowed."""


class StepCounter:
    """Runs a pattern over texts and counts."""

    def __init__(self, pattern: "re.Pattern[str]", limit: int = 1_000_000) -> None:
        self._program = program_of(pattern)
        self._limit = limit
        self.steps = 0

    def scan(self, text: str) -> list[tuple[int, int]]:
        """All matches as `finditer` finds them."""
        found, at, barred = [], 0, -1
        while at <= len(text):
            match = self._run(self._program, text, at, barred)
            if match is None:
                at += 1
                continue
            end, _ = match
            found.append((at, end))
            # As `re` does it: an empty match may follow a match, and the next one must not be that empty match.
            barred = end if end == at else -1
            at = end
        return found

    def match(self, text: str, *, full: bool = False) -> int | None:
        """The end of a match at the beginning; with `full` only one that ends with the text counts."""
        match = self._run(self._program, text, 0, full=full)
        return None if match is None else match[0]

    def _run(
        self,
        program: Program,
        text: str,
        at: int,
        barred: int = -1,
        kept: tuple[int, ...] | None = None,
        *,
        full: bool = False,
    ) -> tuple[int, tuple[int, ...]] | None:
        """The end of the first match that begins here, and what is remembered by then. `barred` is where an empty one
        does not count."""
        stack: list[State] = [(0, at, (-1,) * program.memory.places if kept is None else kept)]
        steps, size = program.steps, len(text)
        while stack:
            index, here, kept = stack.pop()
            while True:
                self.steps += 1
                if self.steps > self._limit:
                    raise TooManySteps
                step = steps[index]
                index += 1
                if step.kind == "one":
                    assert step.fits is not None
                    if here >= size or not step.fits(text[here]):
                        break
                    here += 1
                elif step.kind == "many":
                    end = self._many(step, text, here)
                    if end < here + step.least:
                        break
                    if step.greedy:
                        stack.extend((index, back, kept) for back in range(here + step.least, end))
                        here = end
                    else:
                        stack.extend((index, on, kept) for on in range(end, here + step.least, -1))
                        here += step.least
                elif step.kind == "possessive":
                    end = self._many(step, text, here)
                    if end < here + step.least:
                        break
                    here = end
                elif step.kind == "split":
                    stack.append((step.otherwise, here, kept))
                    index = step.to
                elif step.kind == "jump":
                    index = step.to
                elif step.kind in ("round", "keep"):
                    if step.kind == "round" and kept[step.to] == here:  # a round of nothing would never end
                        break
                    kept = (*kept[: step.to], here, *kept[step.to + 1 :])
                elif step.kind == "again":
                    said = text[kept[step.to] : kept[step.to + 1]]
                    self.steps += len(said)
                    if kept[step.to + 1] < 0 or not text.startswith(said, here):
                        break
                    here += len(said)
                elif step.kind == "place":
                    assert step.pattern is not None
                    if step.pattern.match(text, here) is None:
                        break
                elif step.kind in ("look", "look not"):
                    assert step.inner is not None
                    from_here = here - step.behind
                    seen = from_here >= 0 and self._run(step.inner, text, from_here, kept=kept) is not None
                    if seen is (step.kind == "look not"):
                        break
                elif step.kind == "atomic":
                    assert step.inner is not None
                    whole = self._run(step.inner, text, here, kept=kept)
                    if whole is None:
                        break
                    here, kept = whole
                else:
                    if here == barred == at or (full and here != size):
                        break
                    return here, kept
        return None

    def _many(self, step: Step, text: str, here: int) -> int:
        assert step.fits is not None
        end, last = here, min(len(text), here + step.most)
        while end < last and step.fits(text[end]):
            end += 1
        self.steps += end - here
        return end


@cache
def program_of(pattern: "re.Pattern[str]") -> Program:
    parsed = sre_parse.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    program = Program()
    for group in _groups_referred_to(parsed):
        program.memory.groups[group] = program.memory.place(2)
    _compile(program, parsed, pattern.flags)
    program.add("done")
    return program


def _groups_referred_to(parsed: Any) -> set[int]:
    found: set[int] = set()
    for operation, argument in parsed:
        if operation is sre.GROUPREF:
            found.add(argument)
        for part in argument if isinstance(argument, tuple | list) else ():
            for inner in part if isinstance(part, list) else [part]:
                if isinstance(inner, sre_parse.SubPattern):
                    found |= _groups_referred_to(inner)
    return found


def _compile(program: Program, parsed: Any, flags: int) -> None:
    for operation, argument in parsed:
        _compile_one(program, parsed, operation, argument, flags)


def _compile_one(program: Program, parsed: Any, operation: Any, argument: Any, flags: int) -> None:
    if operation in _ONE_CHARACTER:
        program.add("one", fits=_predicate(parsed, operation, argument, flags))
    elif operation is sre.AT:
        program.add("place", pattern=_real(parsed, operation, argument, flags))
    elif operation is sre.SUBPATTERN:
        group, added, removed, inner = argument
        place = program.memory.groups.get(group)
        if place is not None:
            program.add("keep", to=place)
        _compile(program, inner, (flags | added) & ~removed)
        if place is not None:
            program.add("keep", to=place + 1)
    elif operation is sre.GROUPREF:
        program.add("again", to=program.memory.groups[argument])
    elif operation is sre.BRANCH:
        _compile_branches(program, argument[1], flags)
    elif operation in _REPEATS:
        _compile_repeat(program, operation, argument, flags)
    elif operation in (sre.ASSERT, sre.ASSERT_NOT):
        direction, inner = argument
        kind = "look" if operation is sre.ASSERT else "look not"
        behind = inner.getwidth()[1] if direction < 0 else 0
        program.add(kind, inner=_part(program, inner, flags), behind=behind)
    elif operation is sre.ATOMIC_GROUP:
        program.add("atomic", inner=_part(program, argument, flags))
    else:
        raise NotImplementedError(f"{operation} is not known to the counting matcher")


def _part(whole: Program, parsed: Any, flags: int) -> Program:
    part = Program(memory=whole.memory)
    _compile(part, parsed, flags)
    part.add("done")
    return part


def _compile_branches(program: Program, branches: list[Any], flags: int) -> None:
    ends = []
    for number, branch in enumerate(branches):
        last = number == len(branches) - 1
        split = -1 if last else program.add("split")
        if not last:
            program.change(split, to=split + 1)
        _compile(program, branch, flags)
        if not last:
            ends.append(program.add("jump"))
            program.change(split, otherwise=len(program.steps))
    for end in ends:
        program.change(end, to=len(program.steps))


def _compile_repeat(program: Program, operation: Any, argument: Any, flags: int) -> None:
    least, most, inner = argument
    unlimited = most is sre.MAXREPEAT or most >= 1 << 30
    if len(inner) == 1 and inner[0][0] in _ONE_CHARACTER:
        kind = "possessive" if operation is sre.POSSESSIVE_REPEAT else "many"
        single, about = inner[0]
        fits = _predicate(inner, single, about, flags)
        many = 1 << 30 if unlimited else most
        program.add(kind, fits=fits, least=least, most=many, greedy=operation is not sre.MIN_REPEAT)
        return
    if operation is sre.POSSESSIVE_REPEAT:
        greedy = Program(memory=program.memory)
        _compile_repeat(greedy, sre.MAX_REPEAT, argument, flags)
        greedy.add("done")
        program.add("atomic", inner=greedy)
        return
    for _ in range(least):
        _compile(program, inner, flags)
    lazy = operation is sre.MIN_REPEAT
    if unlimited:
        loop = program.memory.place()
        split = program.add("split")
        program.add("round", to=loop)
        _compile(program, inner, flags)
        program.add("jump", to=split)
        _aim(program, split, split + 1, len(program.steps), lazy)
        return
    splits = []
    for _ in range(most - least):
        splits.append(program.add("split"))
        _compile(program, inner, flags)
    for split in splits:
        _aim(program, split, split + 1, len(program.steps), lazy)


def _aim(program: Program, split: int, into: int, past: int, lazy: bool) -> None:
    program.change(split, to=past if lazy else into, otherwise=into if lazy else past)


def _real(parsed: Any, operation: Any, argument: Any, flags: int) -> "re.Pattern[str]":
    """One operation as a pattern of Python's own engine."""
    single = sre_parse.SubPattern(parsed.state, [(operation, argument)])
    made: re.Pattern[str] = sre_compile.compile(single, flags & ~re.DEBUG)
    return made


def _predicate(parsed: Any, operation: Any, argument: Any, flags: int) -> Callable[[str], bool]:
    pattern, known = _real(parsed, operation, argument, flags), dict[str, bool]()

    def fits(character: str) -> bool:
        answer = known.get(character)
        if answer is None:
            answer = known[character] = pattern.match(character) is not None
        return answer

    return fits
