"""The resources, prompts and completions that the suite's scenarios ask for by name.

Our server takes them where it takes those of the hub's servers (`HubContents`): it merges the lists, keeps the
subscriptions and announces the changes.
"""

import json
import re
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from claude_code_mcp.server.resource_addresses import unknown

from .suite_tools import PNG, elicit, image, resource, text

_TEMPLATE = re.compile(r"test://template/([^/]+)/data")
ASKING_PROMPT = "test_input_required_result_prompt"


class SuiteContents:
    """What there is, the same for every caller."""

    async def resources(self, _: str) -> types.ListResourcesResult:
        listed = {
            "test://static-text": "text/plain",
            "test://static-binary": "image/png",
            "test://watched-resource": "text/plain",
        }
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=uri, name=uri.removeprefix("test://"), description="For the suite", mime_type=kind)
                for uri, kind in listed.items()
            ]
        )

    async def templates(self, _: str) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template="test://template/{id}/data", name="template", description="For the suite"
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read(self, _: str, uri: str) -> types.ReadResourceResult:
        texts = {
            "test://static-text": "This is the content of the static text resource.",
            "test://watched-resource": "Watched resource content",
        }
        found = _TEMPLATE.fullmatch(uri)
        content: types.TextResourceContents | types.BlobResourceContents
        if uri in texts:
            content = types.TextResourceContents(uri=uri, mime_type="text/plain", text=texts[uri])
        elif uri == "test://static-binary":
            content = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
        elif found is not None:
            data = {"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"}
            content = types.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(data))
        else:
            raise unknown(uri)
        return types.ReadResourceResult(contents=[content])

    async def follow(self, owner: str, uri: str) -> None:
        await self.read(owner, uri)  # only what there is can be followed

    async def prompts(self, _: str) -> types.ListPromptsResult:
        arguments = {
            "test_simple_prompt": (),
            "test_prompt_with_arguments": ("arg1", "arg2"),
            "test_prompt_with_embedded_resource": ("resourceUri",),
            "test_prompt_with_image": (),
            ASKING_PROMPT: (),
        }
        return types.ListPromptsResult(
            prompts=[
                types.Prompt(
                    name=name,
                    description="For the suite",
                    arguments=[types.PromptArgument(name=argument, required=True) for argument in names],
                )
                for name, names in arguments.items()
            ]
        )

    async def prompt(self, _: str, name: str, arguments: dict[str, str] | None) -> types.GetPromptResult:
        values = arguments or {}
        contents: list[types.ContentBlock]
        if name == "test_simple_prompt":
            contents = [text("This is a simple prompt for testing.")]
        elif name == "test_prompt_with_arguments":
            contents = [text(f"Prompt with arguments: arg1='{values['arg1']}', arg2='{values['arg2']}'")]
        elif name == "test_prompt_with_embedded_resource":
            embedded = resource(values["resourceUri"], "text/plain", "Embedded resource content for testing.")
            contents = [embedded, text("Please process the embedded resource above.")]
        elif name == "test_prompt_with_image":
            contents = [image(), text("Please analyze the image above.")]
        else:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {name[:100]}")
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=each) for each in contents])

    async def complete(self, _: str, params: types.CompleteRequestParams) -> types.CompleteResult:
        values = [value for value in ("paris", "park", "party") if value.startswith(params.argument.value)]
        return types.CompleteResult(completion=types.Completion(values=values, total=len(values), has_more=False))


async def asking_prompt(
    _: Any, params: types.GetPromptRequestParams
) -> types.GetPromptResult | types.InputRequiredResult:
    """A prompt that needs an answer of the person first."""
    answer = (params.input_responses or {}).get("user_context")
    if not isinstance(answer, types.ElicitResult) or "context" not in (answer.content or {}):
        question = elicit("What context should the prompt use?", "context")
        return types.InputRequiredResult(input_requests={"user_context": question})
    content = text(f"Use this context: {(answer.content or {})['context']}")
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])
