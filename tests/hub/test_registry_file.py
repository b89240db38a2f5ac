"""Servers of a registry as entries of ours."""

from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.hub.registry_file import chosen_entries, entry_of, registry_documents

STDIO = {"type": "stdio"}


def document(name: str = "io.github.acme/tickets", **parts: Any) -> dict[str, Any]:
    return {"name": name, "description": "d", "version": "1.0.0", **parts}


def package(kind: str = "npm", **parts: Any) -> dict[str, Any]:
    return {"registryType": kind, "identifier": "a-server", "version": "1.2.0", "transport": STDIO, **parts}


@pytest.mark.parametrize(
    ("kind", "command", "words"),
    [
        ("npm", "npx", ["-y", "a-server@1.2.0"]),
        ("pypi", "uvx", ["a-server@1.2.0"]),
        ("oci", "docker", ["run", "-i", "--rm", "a-server"]),
        ("nuget", "dnx", ["a-server@1.2.0", "--yes"]),
    ],
)
def test_a_package_is_run_by_its_runner_in_the_version_of_the_document(
    kind: str, command: str, words: list[str]
) -> None:
    made = entry_of(document(packages=[package(kind, runtimeHint="evil")]))
    assert made == {"command": command, "args": words}


def test_open_values_of_a_registry_document_become_variables() -> None:
    arguments = [
        {"type": "positional", "valueHint": "project", "isRequired": True},
        {"type": "positional", "valueHint": "optional"},
        {"type": "named", "name": "--mode", "default": "fast"},
        {"type": "named", "name": "--verbose", "format": "boolean", "value": "true"},
        {"type": "named", "name": "--key", "value": "k={anthropic_api_key}", "variables": {"anthropic_api_key": {}}},
    ]
    variables = [
        {"name": "TOKEN", "isRequired": True, "isSecret": True},
        {"name": "LEVEL", "default": "info"},
        {"name": "REGION", "value": "eu"},
        {"name": "OPTIONAL"},
    ]
    made = entry_of(document(packages=[package(packageArguments=arguments, environmentVariables=variables)]))
    assert made == {
        "command": "npx",
        "args": [
            *("-y", "a-server@1.2.0", "${TICKETS_PROJECT}", "--mode", "${TICKETS_MODE:-fast}", "--verbose", "--key"),
            "k=${TICKETS_ANTHROPIC_API_KEY}",
        ],
        "env": {"TOKEN": "${TOKEN}", "LEVEL": "${LEVEL:-info}", "REGION": "eu"},
    }


def test_an_address_is_taken_where_no_program_can_be_run() -> None:
    remote = {
        "type": "streamable-http",
        "url": "https://{region}.example.com/mcp",
        "variables": {"region": {"default": "eu"}},
        "headers": [{"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isSecret": True}}}],
    }
    made = entry_of(document(packages=[package("mcpb"), package(transport={"type": "sse"})], remotes=[remote]))
    assert made == {
        "type": "http",
        "url": "https://${TICKETS_REGION:-eu}.example.com/mcp",
        "headers": {"Authorization": "Bearer ${TICKETS_TOKEN}"},
    }


@pytest.mark.parametrize(
    "parts",
    [
        {
            "remotes": [
                {"type": "sse", "url": "https://a/", "headers": [{"name": "A", "value": "${ANTHROPIC_API_KEY}"}]}
            ]
        },
        {"packages": [package(environmentVariables=[{"name": "A", "default": "${HOME}"}])]},
        {"packages": [package("mcpb")]},
        {"remotes": [{"type": "gopher", "url": "gopher://a"}]},
        {"packages": "none", "remotes": [7]},
    ],
)
def test_documents_with_variables_or_without_packages_are_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"io\.github\.acme/tickets"):
        entry_of(document(**parts))


def test_servers_of_a_list_are_chosen_by_name_in_their_latest_version() -> None:
    def version(number: str, latest: bool) -> dict[str, Any]:
        meta = {"io.modelcontextprotocol.registry/official": {"isLatest": latest}}
        return {"server": document(packages=[package(version=number)]), "_meta": meta}

    other = document("com.example/tickets", packages=[package("pypi")])
    files = document("com.example/files", packages=[package()])
    listed = [version("1.2.0", False), version("1.3.0", True), version("1.1.0", False), other, files, {"name": "x"}, 7]
    documents = registry_documents({"servers": listed})
    assert documents is not None
    assert list(chosen_entries(documents, ["files"])) == ["files"]
    made = chosen_entries(documents, ["io.github.acme/tickets"])
    assert made["tickets"]["args"] == ["-y", "a-server@1.3.0"]
    assert chosen_entries(documents, ["nobody"]) == {}
    for names, why in (["tickets"], "com.example/tickets"), ([], r"\b3\b"):
        with pytest.raises(InvalidArgument, match=why):
            chosen_entries(documents, names)


def test_other_files_are_none_of_a_registry() -> None:
    others: list[object] = [{"mcpServers": {}}, {"servers": {"x": {"url": "https://a"}}}, {"name": "x"}, [], None]
    for content in others:
        assert registry_documents(content) is None
    assert registry_documents(document(remotes=[])) == {"io.github.acme/tickets": document(remotes=[])}
