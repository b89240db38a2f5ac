"""The outline of a transcript: the positions of each turn's lines.

A transcript is a tree: every line names its parent, and a conversation that was rewound to an earlier message continues
in another branch. Only the branch of the last message counts. Parallel calls are on side branches and belong to it
nevertheless; a summary (`/compact`) leads to the conversation it summarizes. A damaged line is replaced by the line
above it in the file.

A transcript is read once, one line at a time. About eighty bytes are kept per line, in arrays: its position, and hashes
of its ids. The contents of a transcript never raise; reading blocks on the disk.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from ..private_files import unless_absent
from .transcript_lines import lines_from, message_blocks, parse, typed

_MAX_LINES = 250_000
"""How many of a transcript's last lines are read: a session's commands can write any number into its transcript, and
one process reads the conversations of all callers."""
_BEGINS_TURN, _IS_MESSAGE, _IS_REPEATED = 1, 2, 4


class LineRange(NamedTuple):
    """The position of a line in its file."""

    start: int
    end: int


class TurnLines(Sequence[tuple[LineRange, ...]]):
    """The lines of each turn, in file order."""

    def __init__(self, starts: "array[int]", ends: "array[int]", firsts: "array[int]") -> None:
        """`firsts` has the number of each turn's first line and, at its end, the number of lines."""
        self._starts, self._ends, self._firsts = starts, ends, firsts

    def __len__(self) -> int:
        return len(self._firsts) - 1

    @overload
    def __getitem__(self, index: int) -> tuple[LineRange, ...]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[LineRange, ...]]: ...

    def __getitem__(self, index: int | slice) -> tuple[LineRange, ...] | list[tuple[LineRange, ...]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        lines = range(self._firsts[number], self._firsts[number + 1])
        return tuple(LineRange(self._starts[line], self._ends[line]) for line in lines)


@dataclass(frozen=True, slots=True)
class Outline:
    """The positions of a conversation's turns."""

    turns: Sequence[tuple[LineRange, ...]] = ()
    left_behind: int = 0
    """The number of messages on other branches."""


def read_outline(path: str, *, of_subagent: bool = False) -> Outline:
    """The outline of the transcript at a path; empty if it does not exist. Raises OSError if it cannot be read."""
    return unless_absent(lambda: outline(lines_from(path), of_subagent=of_subagent)) or Outline()


def outline(lines: Iterable[tuple[bytes, int]], *, of_subagent: bool = False) -> Outline:
    """The outline of lines, each given with the offset after it."""
    tree = _Tree()
    start = 0
    for raw, end in lines:
        line = parse(raw) if b'"uuid"' in raw else None
        if line is not None and bool(line.get("isSidechain")) is of_subagent and isinstance(line.get("uuid"), str):
            tree.add(line, start, end)
        # Many at once: dropping them one by one would move all others each time.
        if len(tree.starts) >= 2 * _MAX_LINES:
            tree.drop(_MAX_LINES)
        start = end
    return _outline(tree)


class _Tree:
    """The lines of a transcript that belong to its tree, in file order, identified by number. Ids are stored as hashes,
    0 for none, with a random key per process, so that collisions cannot be chosen."""

    def __init__(self) -> None:
        self.starts, self.ends = array("q"), array("q")
        self.ids, self.parents = array("q"), array("q")
        self.answers = array("q")
        """Ids of the model answers that lines are part of."""
        self.flags = bytearray()
        self.calls, self.results = _IdsOfLines(), _IdsOfLines()
        """The calls made in lines, and the calls whose results they have."""

    def add(self, line: Mapping[str, Any], start: int, end: int) -> None:
        number = len(self.starts)
        self.starts.append(start)
        self.ends.append(end)
        self.ids.append(_hash(line["uuid"]))
        self.parents.append(_hash(line.get("parentUuid") or line.get("logicalParentUuid")))
        message = line.get("message") if line.get("type") == "assistant" else None
        self.answers.append(_hash(message.get("id") if isinstance(message, Mapping) else None))
        for block in message_blocks(line):
            if block.get("type") == "tool_use":
                self.calls.add(number, str(block.get("id")))
            elif block.get("type") == "tool_result":
                self.results.add(number, str(block.get("tool_use_id")))
        begins_turn = typed(line, of_subagent=bool(line.get("isSidechain"))) is not None
        is_message = line.get("type") in ("user", "assistant") and not line.get("isMeta")
        self.flags.append(_BEGINS_TURN * begins_turn | _IS_MESSAGE * is_message)

    def drop(self, count: int) -> None:
        """Removes the first lines."""
        for kept in (self.starts, self.ends, self.ids, self.parents, self.answers, self.flags):
            del kept[:count]
        self.calls.drop(count)
        self.results.drop(count)


class _IdsOfLines:
    """Ids in lines, any number per line, in the order of the lines."""

    def __init__(self) -> None:
        self.lines, self.ids = array("q"), array("q")

    def add(self, line: int, text: str) -> None:
        self.lines.append(line)
        self.ids.append(_hash(text))

    def drop(self, count: int) -> None:
        first = bisect_left(self.lines, count)
        self.lines = array("q", (line - count for line in self.lines[first:]))
        del self.ids[:first]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.lines, self.ids, strict=True)


def _hash(value: object) -> int:
    return (hash(value) or 1) if isinstance(value, str) else 0


def _outline(tree: _Tree) -> Outline:
    branch = _branch(tree)
    turn_of = _turn_of_each(tree, branch)
    spoken = kept = 0
    for flags, turn in zip(tree.flags, turn_of, strict=True):
        if flags & _IS_MESSAGE and not flags & _IS_REPEATED:
            spoken += 1
            kept += turn >= 0
    return Outline(_turns(tree, turn_of) if branch else (), spoken - kept)


def _branch(tree: _Tree) -> "array[int]":
    """The lines of the last message's branch, from its beginning. Marks lines that repeat an id: the first one counts,
    so that a later line cannot replace an earlier one."""
    count = len(tree.ids)
    # Sorted arrays instead of a dictionary, which would need more memory than all arrays. The first of equal ids comes
    # first.
    order = array("q", sorted(range(count), key=tree.ids.__getitem__))
    ids = array("q", (tree.ids[line] for line in order))
    for place in range(1, count):
        if ids[place] == ids[place - 1]:
            tree.flags[order[place]] |= _IS_REPEATED

    def above(line: int) -> int:
        """The line above a line in the file; -1 if there is none."""
        line -= 1
        while line >= 0 and tree.flags[line] & _IS_REPEATED:
            line -= 1
        return line

    last = above(count)
    while last >= 0 and not tree.flags[last] & _IS_MESSAGE:
        last = above(last)
    branch, seen, reached = array("q"), bytearray(count), count
    # The file may be damaged, or written by any program: parents may be missing or form a cycle.
    while last >= 0:
        seen[last] = 1
        branch.append(last)
        reached = min(reached, last)
        place = bisect_left(ids, tree.parents[last]) if tree.parents[last] else count
        found = place < count and ids[place] == tree.parents[last]
        # A parent that is missing or part of a cycle is replaced by the line above all lines taken so far.
        last = order[place] if found and not seen[order[place]] else above(reached)
    branch.reverse()
    return branch


def _turn_of_each(tree: _Tree, branch: "array[int]") -> "array[int]":
    """The turn of each line, -1 for lines of other branches. The branch includes parts of the same answer on other
    branches, because it continues from the call that ended last, and the results of calls."""
    turn_of, turn, begun = array("q", [-1]) * len(tree.ids), 0, False
    for line in branch:
        turn += bool(tree.flags[line] & _BEGINS_TURN) and begun
        begun = begun or bool(tree.flags[line] & _IS_MESSAGE)
        turn_of[line] = turn

    def is_elsewhere(line: int) -> bool:
        return turn_of[line] < 0 and not tree.flags[line] & _IS_REPEATED

    # Only ids that occur in other lines are looked up, and these are few.
    wanted = {tree.answers[line] for line in range(len(turn_of)) if is_elsewhere(line)} - {0}
    turn_of_answer = {tree.answers[line]: turn_of[line] for line in branch if tree.answers[line] in wanted}
    for line in range(len(turn_of)):
        if is_elsewhere(line) and tree.answers[line] in turn_of_answer:
            turn_of[line] = turn_of_answer[tree.answers[line]]
    # After the parts of answers: calls in a part on a side branch have results too.
    wanted = {call for line, call in tree.results if is_elsewhere(line)}
    turn_of_call = {call: turn_of[line] for line, call in tree.calls if turn_of[line] >= 0 and call in wanted}
    for line, call in tree.results:
        if is_elsewhere(line) and call in turn_of_call:
            turn_of[line] = turn_of_call[call]
    return turn_of


def _turns(tree: _Tree, turn_of: "array[int]") -> TurnLines:
    """The lines of each turn, sorted by counting."""
    firsts = array("q", [0]) * (max(turn_of) + 2)
    for turn in turn_of:
        if turn >= 0:
            firsts[turn + 1] += 1
    for turn in range(1, len(firsts)):
        firsts[turn] += firsts[turn - 1]
    places, free = array("q", [0]) * firsts[-1], array("q", firsts)
    for line, turn in enumerate(turn_of):
        if turn >= 0:
            places[free[turn]] = line
            free[turn] += 1
    starts, ends = (array("q", (kept[line] for line in places)) for kept in (tree.starts, tree.ends))
    return TurnLines(starts, ends, firsts)
