"""A model's Markdown as safe HTML.

CommonMark with tables and strikethrough. HTML in the text stays text. Only `http`, `https` and `mailto` addresses
become links; other links stay as written. Images are not loaded: their description and address are shown instead.
Importing this module imports markdown-it, so import it where it is used.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from ..model.text import visible

MAX_NESTING = 40
"""Nesting levels that the parser enters; deeper blocks are dropped. The time for unclosed brackets is proportional to
this times their number."""
_LINK_SCHEMES = ("http://", "https://", "mailto:")


def markdown_html(text: str) -> str:
    """The HTML of a Markdown text, in linear time. Invisible characters are escaped as in `visible`, also those written
    as entities."""
    # Before: the parser cannot encode lone surrogates. After: entities such as &#x202e; have become characters.
    return visible(str(_PARSER.render(visible(text))))


class _Parser(MarkdownIt):
    def __init__(self) -> None:
        super().__init__("commonmark", {"html": False, "maxNesting": MAX_NESTING}, renderer_cls=_Renderer)
        self.enable(["table", "strikethrough"])

    def validateLink(self, url: str) -> bool:  # noqa: N802 - the parser's name
        return url.lower().startswith(_LINK_SCHEMES)


class _Renderer(RendererHTML):
    def heading_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"<{_heading_tag(tokens[idx])}>"

    def heading_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f"</{_heading_tag(tokens[idx])}>\n"

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return f'<a href="{escape(_text_attribute(tokens[idx], "href"))}" rel="noopener noreferrer">'

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        description = self.renderInlineAsText(tokens[idx].children, options, env)
        return escape(f"🖼 {description} ({_text_attribute(tokens[idx], 'src')})")


def _heading_tag(token: Token) -> str:
    """The page itself uses the first two heading levels."""
    return f"h{min(6, int(token.tag[1:]) + 2)}"


def _text_attribute(token: Token, name: str) -> str:
    value: Any = token.attrs.get(name, "")
    return str(value)


_PARSER = _Parser()
