"""Unified diffs, line by line. Pure.

A diff is always correct: applied to the first text it yields the second. It is minimal between lines that occur once in
both texts, while the work stays within a budget; beyond that a segment is shown as removed and added lines. Time is
linear in the texts, except for sorting those lines.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_NO_BREAK = "\\ No newline at end of file"
_BUDGET = 60_000
"""Steps of the search for the shortest edit script, in all segments of one comparison."""
_WHOLE_LINES = 400
"""Files with up to this many lines are shown completely; longer ones with this many lines of context."""
_CONTEXT = 8


class _Segment(NamedTuple):
    """Equal lines of both texts, or removed lines of the first and added lines of the second."""

    same: bool
    old: range
    new: range


def unified_diff(before: str, after: str) -> str:
    """The hunks of a unified diff, without file names; empty if the texts are equal."""
    if before == after:
        return ""
    old, new = _lines(before), _lines(after)
    segments = list(_joined(_compare(old, new)))
    context = max(len(old), len(new)) if len(old) <= _WHOLE_LINES else _CONTEXT
    return "\n".join(_hunk_lines(old, new, segments, context))


def equal_ends(old: Sequence[str], new: Sequence[str]) -> tuple[int, int]:
    """The number of equal lines at the start of both texts, and at their end."""
    most = min(len(old), len(new))
    start = next((at for at in range(most) if old[at] != new[at]), most)
    end = next((at for at in range(most - start) if old[-1 - at] != new[-1 - at]), most - start)
    return start, end


def _lines(text: str) -> list[str]:
    """The lines with their line breaks, so that a missing one at the end is a difference."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


# -- comparing --------------------------------------------------------------------------------------------------------


def _compare(old: Sequence[str], new: Sequence[str]) -> Iterator[_Segment]:
    budget = [_BUDGET]
    a = b = 0
    for anchor_old, anchor_new in [*_anchors(old, new), (len(old), len(new))]:
        yield from _between(old, new, range(a, anchor_old), range(b, anchor_new), budget)
        if anchor_old < len(old):
            yield _Segment(True, range(anchor_old, anchor_old + 1), range(anchor_new, anchor_new + 1))
        a, b = anchor_old + 1, anchor_new + 1


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """The longest sequence of lines that occur once in each text, in the same order in both (patience diff)."""
    once_old, once_new = _unique(old), _unique(new)
    pairs = [(at, once_new[line]) for line, at in once_old.items() if line in once_new]
    ends: list[int] = []  # by length, the smallest place in the second text at which such a series ends
    last: list[int] = []  # the pair it ends with
    previous: list[int] = []
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        previous.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(place)
            last.append(number)
        else:
            ends[length], last[length] = place, number
    series: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        series.append(pairs[number])
        number = previous[number]
    return series[::-1]


def _unique(lines: Sequence[str]) -> dict[str, int]:
    """The positions of the lines that occur once, in order."""
    places: dict[str, int] = {}
    repeated: set[str] = set()
    for at, line in enumerate(lines):
        if line in places:
            repeated.add(line)
        places[line] = at
    return {line: at for line, at in places.items() if line not in repeated}


def _between(
    old: Sequence[str], new: Sequence[str], left: range, right: range, budget: list[int]
) -> Iterator[_Segment]:
    """The segments between two anchors: common ends, and the shortest edit script between them."""
    start = 0
    while start < min(len(left), len(right)) and old[left[start]] == new[right[start]]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and old[left[-1 - end]] == new[right[-1 - end]]:
        end += 1
    yield _Segment(True, left[:start], right[:start])
    a, b = left.start + start, right.start + start
    for step in _steps(old[a : left.stop - end], new[b : right.stop - end], budget):
        took, came = step <= 0, step >= 0
        yield _Segment(step == 0, range(a, a + took), range(b, b + came))
        a, b = a + took, b + came
    yield _Segment(True, range(a, left.stop), range(b, right.stop))


def _steps(old: Sequence[str], new: Sequence[str], budget: list[int]) -> list[int]:
    """The shortest edit script (Myers): -1 removes a line, 1 adds one, 0 keeps one. Removes all and adds all if the
    remaining budget is too small."""
    everything = [-1] * len(old) + [1] * len(new)
    if not old or not new:
        return everything
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for distance in range(len(old) + len(new) + 1):
        budget[0] -= 2 * distance + 1  # of the copy below and of the diagonals
        if budget[0] < 0:
            return everything
        trace.append(dict(furthest))
        for diagonal in range(-distance, distance + 1, 2):
            x = _reached(furthest, diagonal, distance)
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x, budget[0] = x + 1, budget[0] - 1
            furthest[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _backtrack(trace, len(old), len(new))
    return everything


def _reached(furthest: dict[int, int], diagonal: int, distance: int) -> int:
    if _from_above(furthest, diagonal, distance):
        return furthest.get(diagonal + 1, 0)
    return furthest.get(diagonal - 1, 0) + 1


def _from_above(furthest: dict[int, int], diagonal: int, distance: int) -> bool:
    if diagonal in (-distance, distance):
        return diagonal == -distance
    return furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)


def _backtrack(trace: Sequence[dict[int, int]], x: int, y: int) -> list[int]:
    steps: list[int] = []
    for distance in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[distance], x - y
        above = _from_above(furthest, diagonal, distance)
        before = diagonal + 1 if above else diagonal - 1
        from_x = furthest.get(before, 0) if distance else 0
        from_y = from_x - before if distance else 0
        landed = from_x if above or not distance else from_x + 1
        steps += [0] * (x - landed)
        if distance:
            steps.append(1 if above else -1)
        x, y = from_x, from_y
    return steps[::-1]


def _joined(segments: Iterator[_Segment]) -> Iterator[_Segment]:
    """Merges adjacent segments of the same kind."""
    held: _Segment | None = None
    for segment in segments:
        if not segment.old and not segment.new:
            continue
        if held is not None and held.same == segment.same:
            old, new = range(held.old.start, segment.old.stop), range(held.new.start, segment.new.stop)
            held = _Segment(held.same, old, new)
            continue
        if held is not None:
            yield held
        held = segment
    if held is not None:
        yield held


# -- writing ----------------------------------------------------------------------------------------------------------


def _hunk_lines(old: Sequence[str], new: Sequence[str], segments: Sequence[_Segment], context: int) -> Iterator[str]:
    for hunk in _hunks(segments, context):
        first, last = hunk[0], hunk[-1]
        yield f"@@ -{_place(first.old, last.old)} +{_place(first.new, last.new)} @@"
        for segment in hunk:
            if segment.same:
                yield from _marked(" ", old, segment.old)
            else:
                yield from _marked("-", old, segment.old)
                yield from _marked("+", new, segment.new)


def _hunks(segments: Sequence[_Segment], context: int) -> Iterator[list[_Segment]]:
    """Changes with their context; changes near each other share a hunk."""
    hunk: list[_Segment] = []
    for number, segment in enumerate(segments):
        if not segment.same:
            hunk.append(segment)
            continue
        size, first, last = len(segment.old), number == 0, number == len(segments) - 1
        if first:
            hunk.append(_part(segment, max(0, size - context), size))
        elif last:
            hunk.append(_part(segment, 0, min(size, context)))
        elif size <= 2 * context:
            hunk.append(segment)
        else:
            yield [*hunk, _part(segment, 0, context)]
            hunk = [_part(segment, size - context, size)]
    yield hunk


def _part(segment: _Segment, start: int, end: int) -> _Segment:
    return _Segment(segment.same, segment.old[start:end], segment.new[start:end])


def _place(first: range, last: range) -> str:
    """A hunk's position in a text in unified diff notation; an empty range refers to the line before it."""
    count = last.stop - first.start
    return f"{first.start + 1 if count else first.start},{count}"


def _marked(sign: str, lines: Sequence[str], places: range) -> Iterator[str]:
    for place in places:
        line = lines[place]
        yield sign + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield _NO_BREAK
