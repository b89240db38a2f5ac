"""What the page makes of Markdown, compared with GitHub's own parser, as trees of elements and text."""

import re
import shutil
import subprocess
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from .markdown_cases import CASES
from .page_text import Draw

_NAMES = {
    "emph": "em", "strong": "strong", "strikethrough": "del", "block_quote": "blockquote", "thematic_break": "hr",
    "linebreak": "br", "paragraph": "p",
}  # fmt: skip
_EXTENSIONS = ("table", "strikethrough", "autolink", "tasklist")
Tree = list[Any]


@pytest.fixture(scope="module")
def cmark() -> str:
    found = shutil.which("cmark-gfm")
    if found is None:
        pytest.skip("cmark-gfm is not installed (Debian: cmark-gfm)")
    return found


def theirs(cmark: str, text: str) -> Tree:
    """What GitHub's parser makes of a text, as this page is meant to show it."""
    options = [part for name in _EXTENSIONS for part in ("-e", name)]
    xml = subprocess.run([cmark, "-t", "xml", *options], input=text.encode(), capture_output=True, check=True).stdout
    return joined(_theirs(node) for node in ElementTree.fromstring(xml))


def _theirs(node: ElementTree.Element) -> Any:
    made: Any
    match node.tag.rpartition("}")[2]:
        case "list":
            items = [_their_item(item, tight=node.get("tight") == "true") for item in node]
            made = ["ul", *items] if node.get("type") == "bullet" else ["ol", int(node.get("start") or 1), *items]
        case "table":
            made = ["table", *(["tr", *(["cell", *joined(map(_theirs, cell))] for cell in row)] for row in node)]
        case "text" | "html_inline":
            made = ["br"] if (node.text or "").lower() == "<br>" else node.text or ""
        case "softbreak":
            made = "\n"
        case "code":
            made = ["code", node.text or ""]
        case "html_block":
            made = ["p", (node.text or "").strip()]
        case "code_block":
            made = ["code_block", node.get("info") or "", (node.text or "").removesuffix("\n")]
        case "heading":
            made = [f"h{min(6, int(node.get('level') or 1) + 2)}", *joined(map(_theirs, node))]
        case "link":
            made = _their_link(node.get("destination") or "", [*map(_theirs, node)])
        case "image":
            made = _their_link(node.get("destination") or "", ["🖼 ", *map(_theirs, node)])
        case tag:
            made = [_NAMES[tag], *joined(map(_theirs, node))]
    return made


def _their_item(item: ElementTree.Element, *, tight: bool) -> Tree:
    inside: Tree = []
    if item.tag.endswith("tasklist"):
        inside.append(["input", item.get("completed") == "true"])
    for child in item:
        made = _theirs(child)
        inside += made[1:] if tight and made[0] == "p" else [made]
    return ["li", *joined(inside)]


def _their_link(address: str, inside: Tree) -> Tree:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        return ["span", *joined([*inside, f" ({address})"])]
    whole = parts._replace(path=parts.path or "/").geturl()
    return ["a", whole.replace(" ", "%20"), *joined(inside)]


def ours(node: Any) -> Any:
    """What the page draws, without what it adds around a table or a block of code."""
    if isinstance(node, str):
        return node
    tag, attributes, children = node
    made: Tree
    match tag:
        case "div" if attributes.get("class") == "code":
            (label, _button), (code,) = children[0][2], children[1][2]
            made = ["code_block", "".join(label[2]), "".join(code[2])]
        case "div":
            made = ours(children[0])
        case "table":
            rows = [row for part in children for row in part[2]]
            made = ["table", *(["tr", *(["cell", *joined(map(ours, cell[2]))] for cell in row[2])] for row in rows)]
        case "input":
            made = ["input", "checked" in attributes]
        case "p":  # white space at the start of a line is not shown
            inside = joined(map(ours, children))
            first = [re.sub(r"(^|\n) +", r"\1", part) for part in inside[:1] if isinstance(part, str)]
            made = ["p", *first, *inside[len(first) :]]
        case "ol":
            made = ["ol", int(attributes["start"]), *joined(map(ours, children))]
        case "li":
            made = ["li", *_without_space(joined(map(ours, children)))]
        case "a":
            made = ["a", attributes["href"], *joined(map(ours, children))]
        case _:
            made = [tag, *joined(map(ours, children))]
    return made


def _without_space(inside: Tree) -> Tree:
    """The space between a box and its text, and the box inside the paragraph of a loose item, are only how it looks."""
    if inside and inside[0][0] == "p" and inside[0][1:] and inside[0][1][0] == "input":
        box, *rest = _without_space(inside[0][1:])
        return [box, ["p", *rest], *inside[1:]]
    if len(inside) > 1 and inside[0][0] == "input" and isinstance(inside[1], str):
        return joined([inside[0], inside[1][1:], *inside[2:]])
    return inside


def joined(nodes: Any) -> Tree:
    """With texts that follow one another as one."""
    result: Tree = []
    for node in nodes:
        if isinstance(node, str) and result and isinstance(result[-1], str):
            result[-1] += node
        elif node != "":
            result.append(node)
    return result


def test_there_are_enough_cases_and_each_is_there_once() -> None:
    assert len(set(CASES)) == len(CASES) >= 100


def test_markdown_is_read_as_github_reads_it(cmark: str, draw: Draw) -> None:
    drawn = draw(*(("markdown", text) for text in CASES))
    here = {text: joined(map(ours, nodes)) for text, nodes in zip(CASES, drawn, strict=True)}
    assert here == {text: theirs(cmark, text) for text in CASES}


def test_a_text_is_the_same_when_it_comes_in_fragments(draw: Draw) -> None:
    # A definition of a link behind its use is known only at the end.
    texts = [text for text in CASES if "]: " not in text]
    whole = draw(*(("markdown", text) for text in texts))
    streamed = draw(*(("streamed", text) for text in texts))
    assert dict(zip(texts, streamed, strict=True)) == dict(zip(texts, whole, strict=True))
