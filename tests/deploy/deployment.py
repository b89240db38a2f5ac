"""What is in `deploy`, as the tests look at it: its files, the command lines in them, and the pods."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
PROGRAM = "claude-code-mcp"
IMAGE_WRITABLE = {"/state", "/projects", "/home/claude", "/tmp"}
"""Where the server writes in its container; everything else may be read-only."""


_AMBIGUOUS = re.compile(r"(?i)[0-9][0-9_]*\.[0-9]*|0x[0-9a-f]+|0o?[0-7]+|yes|no|on|off|y|n|~|[0-9]+:[0-9:]+")


class _StrictLoader(yaml.SafeLoader):
    """Refuses duplicate keys, and plain scalars that YAML 1.1 and 1.2 read differently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        if len({*names}) < len(names):
            raise yaml.constructor.ConstructorError(None, None, f"duplicate key among {names}", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.style is None and _AMBIGUOUS.fullmatch(node.value):
            raise yaml.constructor.ConstructorError(None, None, f"ambiguous: {node.value}", node.start_mark)
        return super().construct_object(node, deep)


def read_documents(text: str) -> list[Any]:
    """Every document of a file."""
    return list(yaml.load_all(text, _StrictLoader))


def read_yaml(text: str) -> Any:
    """The only document of a file."""
    (document,) = read_documents(text)
    return document


def files() -> list[Path]:
    return sorted(path for path in DEPLOY.rglob("*") if path.is_file())


def text_of(path: str) -> str:
    return (DEPLOY / path).read_text(encoding="utf-8")


def json_of(path: str) -> Any:
    return json.loads(text_of(path))


@dataclass(frozen=True)
class CommandLine:
    """One of ours, in a file."""

    where: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {' '.join(self.arguments)}"


def command_lines() -> list[CommandLine]:
    """Every command line of ours in `deploy`, whatever runs it."""
    return [
        *_in_yaml(),
        *_in_shell_text("container/Containerfile", _json_lines("container/Containerfile", "CMD")),
        *(
            CommandLine(unit.name, tuple(shlex.split(line)[1:]))
            for unit in sorted((DEPLOY / "systemd").glob("*.service"))
            for line in re.findall(rf"^ExecStart=(\S+/{PROGRAM} .*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        ),
        *(_in_arguments("bundle/manifest.json", json_of("bundle/manifest.json")["server"]["mcp_config"]["args"])),
        *(
            CommandLine("registry/server.json", tuple(each.get("name") or each["value"] for each in arguments))
            for package in json_of("registry/server.json")["packages"]
            if (arguments := package.get("packageArguments"))
        ),
    ]


def _json_lines(path: str, instruction: str) -> Iterator[list[str]]:
    for found in re.findall(rf"^{instruction} (\[.*\])$", text_of(path), re.MULTILINE):
        yield json.loads(found)


def _in_shell_text(where: str, lists: Iterator[list[str]]) -> Iterator[CommandLine]:
    for arguments in lists:
        yield CommandLine(where, tuple(arguments))


def _in_arguments(where: str, arguments: list[str]) -> Iterator[CommandLine]:
    """A list that names the program, or shell text with it."""
    if PROGRAM in arguments:
        yield CommandLine(where, tuple(arguments[arguments.index(PROGRAM) + 1 :]))
    for text in arguments:
        if f"{PROGRAM} " in text:
            for found in re.findall(rf"\b{PROGRAM} ([^;&|<>]*)", text):
                yield CommandLine(where, tuple(shlex.split(found)))


def _in_yaml() -> Iterator[CommandLine]:
    for file in [path for path in files() if path.suffix == ".yaml"]:
        where = str(file.relative_to(DEPLOY))
        for document in read_documents(file.read_text(encoding="utf-8")):
            for container in _containers(document):
                program = container.get("command" if "kubernetes" in where else "entrypoint") or []
                arguments = container.get("args" if "kubernetes" in where else "command") or []
                if isinstance(arguments, str) or ("image" in container and PROGRAM not in container["image"]):
                    continue  # of another program: the proxy
                if program:
                    yield from _in_arguments(where, [*program, *arguments])
                elif arguments:
                    yield CommandLine(where, tuple(arguments))


def _containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    if "services" in document:
        return list(document["services"].values())
    pod = document.get("spec", {}).get("template", {}).get("spec", {}) if document.get("kind") else {}
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


@dataclass(frozen=True)
class Workload:
    """A Deployment or StatefulSet that runs pods."""

    where: str
    document: dict[str, Any]

    def __str__(self) -> str:
        return self.where

    @property
    def pod(self) -> dict[str, Any]:
        pod: dict[str, Any] = self.document["spec"]["template"]["spec"]
        return pod

    @property
    def main(self) -> dict[str, Any]:
        """The container that is not over when the pod has started."""
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    def volumes(self) -> set[str]:
        claims = self.document["spec"].get("volumeClaimTemplates", [])
        return {each["name"] for each in self.pod["volumes"]} | {each["metadata"]["name"] for each in claims}


def workloads() -> list[Workload]:
    """Those of `team` and `fleet`, and of `fleet-nats` as its patches make them of those of `fleet`."""
    found = [
        Workload(f"{directory}/{document['metadata']['name']}", document)
        for directory in ("team", "fleet")
        for document in documents(directory)
        if document["kind"] in ("Deployment", "StatefulSet")
    ]
    patches = documents("fleet-nats", "patches")
    by_name = {workload.document["metadata"]["name"]: workload.document for workload in found}
    return [
        *found,
        *(
            Workload(f"fleet-nats/{patch['metadata']['name']}", merged(by_name[patch["metadata"]["name"]], patch))
            for patch in patches
        ),
    ]


def documents(directory: str, key: str = "resources") -> list[dict[str, Any]]:
    """What the files contain that a kustomization names."""
    names = [each["path"] if isinstance(each, dict) else each for each in kustomization(directory)[key]]
    return [
        document
        for name in names
        for document in read_documents((KUBERNETES / directory / name).read_text(encoding="utf-8"))
    ]


def kustomization(directory: str) -> dict[str, Any]:
    read: dict[str, Any] = read_yaml((KUBERNETES / directory / "kustomization.yaml").read_text(encoding="utf-8"))
    return read


def merged(base: Any, patch: Any) -> Any:
    """A strategic merge, as Kubernetes does it for what is used here: mappings by key, lists of mappings by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {
            key: merged(base[key], patch[key]) if key in base and key in patch else patch.get(key, base.get(key))
            for key in {**base, **patch}
        }
    if isinstance(patch, list) and all(isinstance(each, dict) for each in (*patch, *base)):
        identity = "mountPath" if "mountPath" in patch[0] else "name"
        both = {each[identity]: each for each in base}
        for each in patch:
            both[each[identity]] = merged(both.get(each[identity], {}), each)
        return list(both.values())
    return patch
