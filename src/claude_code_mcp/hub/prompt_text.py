"""Prompts and content blocks as text. Pure."""

from collections.abc import Sequence

import mcp_types as types


def named_arguments(prompt: types.Prompt, values: Sequence[str]) -> dict[str, str]:
    """The values by the names of the prompt's arguments, in order; the last argument takes all remaining values."""
    names = [argument.name for argument in prompt.arguments or ()]
    if len(values) > len(names) > 0:
        values = [*values[: len(names) - 1], " ".join(values[len(names) - 1 :])]
    return dict(zip(names, values, strict=False))


def prompt_text(result: types.GetPromptResult) -> str:
    """The text of a prompt, as one message."""
    texts = [text_of(message.content) for message in result.messages]
    return "\n\n".join(filter(None, texts)) or (result.description or "")


def text_of(block: types.ContentBlock) -> str:
    """The text of a content block; empty for one without."""
    if isinstance(block, types.TextContent):
        return block.text
    resource = block.resource if isinstance(block, types.EmbeddedResource) else None
    return resource.text if isinstance(resource, types.TextResourceContents) else ""
