"""Small JSON schemas from pydantic models: every byte of a tool list is paid for in the caller's context. Pure."""

from typing import Any

from pydantic import BaseModel


def compact_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema without titles, references and nulls; `additionalProperties: false` stays where extras are refused."""
    schema = model.model_json_schema(by_alias=True, mode="serialization" if _is_output(model) else "validation")
    definitions = schema.pop("$defs", {})
    slim: dict[str, Any] = _slim(schema, definitions)
    slim.pop("description", None)
    return slim


def _is_output(model: type[BaseModel]) -> bool:
    return model.model_config.get("extra") != "forbid"


def _slim(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_slim(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[1]]
        return _slim({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions)
    if "anyOf" in node:
        return _union(node, definitions)
    slim = {key: _slim(value, definitions) for key, value in node.items() if not _is_noise(key, value)}
    if isinstance(node.get("properties"), dict):
        slim["properties"] = {name: _slim(value, definitions) for name, value in node["properties"].items()}
    return slim


def _is_noise(key: str, value: Any) -> bool:
    return (
        key == "title"
        or (key == "default" and value in (None, [], False))
        or (key == "additionalProperties" and value is True)
    )


def _union(node: dict[str, Any], definitions: dict[str, Any]) -> Any:
    options = [option for option in node["anyOf"] if option != {"type": "null"}]
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    if len(options) == 1:
        return _slim({**options[0], **rest}, definitions)
    return _slim({**rest, "oneOf": options}, definitions)
