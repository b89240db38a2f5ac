"""Finds tools by keywords. Pure.

A word in a name scores three times as much as a word in a description or a parameter. Case and plural endings are
ignored, names are split at `_`, `-` and capitals (`createIssue`, `create_issue`), and a query word also matches longer
words that begin with it, at half the score (`repo` finds `repository`). The time is linear in the text of the tools and
the query.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from ..core.model.text import json_parts

_WORD = re.compile(r"[^\W\d_]+|\d+")
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SATURATION, _LENGTH_SHARE = 1.2, 0.75
"""The two parameters of BM25, with their usual values."""
_NAME_WEIGHT = 3
_PREFIX_WEIGHT = 0.5
_MIN_PREFIX = 3
_MAX_PARTS = 500
"""Maximum strings of a schema that are indexed: some servers generate schemas of megabytes."""
_MAX_QUERY = 100
"""Maximum words of a query."""


def words_of(text: str) -> list[str]:
    """The words of a text, normalized for comparison."""
    return [_stem(word) for word in _WORD.findall(_CAPITAL.sub(" ", text).lower())]


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


class ToolIndex:
    """The words of a set of tools."""

    def __init__(self, tools: Iterable[tuple[str, str | None, Mapping[str, Any]]]) -> None:
        """`tools` has the name, description and input schema of each tool."""
        self._counts = [_weighted_words(*tool) for tool in tools]
        self._lengths = [sum(counts.values()) for counts in self._counts]
        self._usual_length = (sum(self._lengths) / len(self._lengths) if self._lengths else 0) or 1.0
        self._tools_with: dict[str, list[int]] = {}
        for number, counts in enumerate(self._counts):
            for word in counts:
                self._tools_with.setdefault(word, []).append(number)

    def ranked(self, query: str) -> Sequence[int]:
        """The indexes of the tools that match a word of the query, best first; ties in their original order."""
        scores: Counter[int] = Counter()
        for wanted in dict.fromkeys(islice(words_of(query), _MAX_QUERY)):
            best: dict[int, float] = {}
            for word, weight in self._matching(wanted):
                for number in self._tools_with[word]:
                    best[number] = max(best.get(number, 0.0), weight * self._score(number, word))
            scores.update(best)
        return sorted(scores, key=lambda number: (-scores[number], number))

    def _matching(self, wanted: str) -> list[tuple[str, float]]:
        found = [(wanted, 1.0)] if wanted in self._tools_with else []
        if len(wanted) >= _MIN_PREFIX:
            longer = (word for word in self._tools_with if word.startswith(wanted) and word != wanted)
            found += [(word, _PREFIX_WEIGHT) for word in longer]
        return found

    def _score(self, number: int, word: str) -> float:
        having, all_ = len(self._tools_with[word]), len(self._counts)
        rarity = math.log1p((all_ - having + 0.5) / (having + 0.5))
        count = self._counts[number][word]
        length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * self._lengths[number] / self._usual_length
        return rarity * count * (_SATURATION + 1) / (count + _SATURATION * length)


def _weighted_words(name: str, description: str | None, schema: Mapping[str, Any]) -> Counter[str]:
    counts = Counter(words_of(description or ""))
    for word in words_of(name):
        counts[word] += _NAME_WEIGHT
    counts.update(word for text in _parameter_texts(schema) for word in words_of(text))
    return counts


def _parameter_texts(schema: Mapping[str, Any]) -> Iterable[str]:
    """The names of the parameters and their descriptions, without the keywords of JSON Schema."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return
    for name, parameter in islice(properties.items(), _MAX_PARTS):
        yield str(name)
        if isinstance(parameter, dict):
            spoken = [parameter.get("title"), parameter.get("description"), parameter.get("enum")]
            yield from (part for part in islice(json_parts(spoken), _MAX_PARTS) if isinstance(part, str))
