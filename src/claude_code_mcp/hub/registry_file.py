"""Converts registry servers to our entries: the packages and addresses in `server.json` of the MCP registry.

A file has one such document, or a list of them under `servers` as the registry's API returns it. Of several versions of
a server, the one marked latest counts, otherwise the first. From a document, the first program that needs only its
runner (`npx`, `uvx`, `docker`, `dnx`) is used, otherwise the first address.

Documents are untrusted. Nothing in them is treated as a variable reference: a document that contains `${` is rejected.
Required inputs become references to variables prefixed with the server's name, so that a document cannot request a
secret meant for something else. Only programs name their variables themselves; they have the user's environment anyway.
Pure.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeGuard

from ..core.errors import InvalidArgument

Document = Mapping[str, Any]

_OFFICIAL = "io.modelcontextprotocol.registry/official"
_RUNNERS = {"npm": "npx", "pypi": "uvx", "oci": "docker", "nuget": "dnx"}
_TYPES = {"streamable-http": "http", "sse": "sse"}
_PLACE = re.compile(r"\{([A-Za-z0-9_.-]{1,100})\}")
_NO_WORD = re.compile(r"[^A-Za-z0-9]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def registry_documents(content: object) -> dict[str, Document] | None:
    """The documents in a file by the names of their servers (`io.github.acme/tickets`); None for another file."""
    if not isinstance(content, Mapping):
        return None
    listed = content.get("servers")
    if not isinstance(listed, list):
        return {str(content["name"]): content} if _is_document(content) else None
    found: dict[str, Document] = {}
    for each in listed:
        document = each.get("server", each) if isinstance(each, Mapping) else None
        if _is_document(document) and (document["name"] not in found or _is_latest(each)):
            found[document["name"]] = document
    return found


def _is_document(content: object) -> TypeGuard[Document]:
    if not isinstance(content, Mapping) or not isinstance(content.get("name"), str):
        return False
    return any(isinstance(content.get(key), list) for key in ("packages", "remotes"))


def _is_latest(listed: Mapping[str, Any]) -> bool:
    meta = listed.get("_meta")
    official = meta.get(_OFFICIAL) if isinstance(meta, Mapping) else None
    return isinstance(official, Mapping) and official.get("isLatest") is True


def chosen_entries(documents: Mapping[str, Document], names: Collection[str]) -> dict[str, dict[str, Any]]:
    """The entries for servers by their names in our file; a server is chosen by its registry name, or by the part after
    the slash. Raises InvalidArgument if a name is ambiguous, if an entry cannot be used, and if nothing is chosen from
    many: a registry is not installed entirely."""
    if not names and len(documents) > 1:
        raise InvalidArgument(f"The file is a registry with {len(documents)} servers. Name the servers to import.")
    entries: dict[str, dict[str, Any]] = {}
    for wanted in names or documents:
        fitting = [name for name in documents if wanted in (name, short_name(name))]
        if len(fitting) > 1:
            raise InvalidArgument(
                f"{wanted!r} is ambiguous; it could be any of these: {', '.join(sorted(fitting)[:10])}."
            )
        entries |= {short_name(name): entry_of(documents[name]) for name in fitting}
    return entries


def short_name(name: str) -> str:
    """The name of a registry server in our file: the part after the slash."""
    return _NO_WORD.sub("-", name.rpartition("/")[2]).strip("-") or "server"


def entry_of(document: Document) -> dict[str, Any]:
    """The entry for a server. Raises InvalidArgument if the document offers nothing usable here."""
    name = str(document.get("name"))
    if _has_reference(document.get("packages")) or _has_reference(document.get("remotes")):
        raise InvalidArgument(f"{name}: its document uses ${{…}} variables, which is not allowed.")
    inputs = _Inputs(short_name(name))
    for package in _mappings(document.get("packages")):
        transport = package.get("transport")
        runs = isinstance(transport, Mapping) and transport.get("type") == "stdio"
        if runs and package.get("registryType") in _RUNNERS and isinstance(package.get("identifier"), str):
            return inputs.program(package)
    for remote in _mappings(document.get("remotes")):
        if remote.get("type") in _TYPES and isinstance(remote.get("url"), str):
            headers = {str(header.get("name")): inputs.value(header) for header in _mappings(remote.get("headers"))}
            asked = {key: value for key, value in headers.items() if value is not None}
            entry = {"type": _TYPES[remote["type"]], "url": inputs.filled(remote["url"], remote.get("variables"))}
            return {**entry, "headers": asked} if asked else entry
    raise InvalidArgument(f"{name}: it has no program or URL that can be used here.")


class _Inputs:
    """The open inputs of a document, as references to one server's variables."""

    def __init__(self, server: str) -> None:
        self._prefix = _NO_WORD.sub("_", server).upper()

    def program(self, package: Mapping[str, Any]) -> dict[str, Any]:
        kind, identifier = package["registryType"], str(package["identifier"])
        version = package.get("version")
        pinned = f"{identifier}@{version}" if isinstance(version, str) and version and kind != "oci" else identifier
        before, after = (
            self._arguments(package.get("runtimeArguments")),
            self._arguments(package.get("packageArguments")),
        )
        environment = dict(self._environment(package))
        match kind:
            case "npm":
                argv = [*(["-y"] if "-y" not in before else []), *before, pinned, *after]
            case "oci":
                passed = [word for name in environment for word in ("-e", name)]
                argv = ["run", "-i", "--rm", *passed, *before, pinned, *after]
            case "nuget":
                argv = [*before, pinned, "--yes", *(["--", *after] if after else [])]
            case _:
                argv = [*before, pinned, *after]
        # We choose the runner: a hint from the document would be run as a program.
        entry = {"command": _RUNNERS[kind], "args": argv}
        return {**entry, "env": environment} if environment else entry

    def _environment(self, package: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The environment; a variable that is neither fixed nor required is left to the user's environment."""
        for variable in _mappings(package.get("environmentVariables")):
            name = str(variable.get("name"))
            if not _VARIABLE.fullmatch(name):
                continue
            if isinstance(variable.get("value"), str):
                yield name, self.filled(variable["value"], variable.get("variables"))
            elif _is_plain(variable.get("default")):
                yield name, f"${{{name}:-{variable['default']}}}"
            elif variable.get("isRequired") is True:
                yield name, f"${{{name}}}"

    def _arguments(self, arguments: object) -> list[str]:
        argv: list[str] = []
        for argument in _mappings(arguments):
            value, flag = self.value(argument), argument.get("name")
            if argument.get("type") == "named" and isinstance(flag, str):
                is_switch = argument.get("format") == "boolean" and value in (None, "true")
                if is_switch and (value or argument.get("isRequired") is True):
                    argv.append(flag)
                elif not is_switch and value is not None:
                    argv += [flag, value]
            elif value is not None:
                argv.append(value)
        return argv

    def value(self, asked: Mapping[str, Any]) -> str | None:
        """The fixed value, else the default, else a reference if required; None if optional."""
        fixed = asked.get("value")
        if isinstance(fixed, str):
            return self.filled(fixed, asked.get("variables"))
        reference = self._reference(asked)
        if _is_plain(asked.get("default")):
            return f"${{{reference}:-{asked['default']}}}"
        return f"${{{reference}}}" if asked.get("isRequired") is True else None

    def filled(self, text: str, variables: object) -> str:
        """A text in which `{names}` that the document describes are replaced by values or references."""
        known = variables if isinstance(variables, Mapping) else {}

        def reference(found: re.Match[str]) -> str:
            asked = known.get(found[1])
            if not isinstance(asked, Mapping):
                return found[0]
            return self.value({**asked, "name": found[1], "isRequired": True}) or ""

        return _PLACE.sub(reference, text)

    def _reference(self, asked: Mapping[str, Any]) -> str:
        name = str(asked.get("valueHint") or asked.get("name") or "value")
        return f"{self._prefix}_{_NO_WORD.sub('_', name).strip('_').upper()[:60]}"


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _is_plain(text: object) -> bool:
    """Whether the text can be the default in a reference."""
    return isinstance(text, str) and bool(text) and "}" not in text and "{" not in text


def _has_reference(value: object) -> bool:
    try:
        return "${" in json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise InvalidArgument("A registry document is nested too deeply.") from None
