"""What the files in `deploy` name exists in the product: commands, flags, settings, paths, ports and extras."""

import hashlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from claude_code_mcp import __version__
from claude_code_mcp.cli.parser import build_parser
from claude_code_mcp.client.conventions import ExitCode
from claude_code_mcp.core.config import Settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.policy.policy import parse_policy
from claude_code_mcp.core.settings_section import Section, variable_of
from claude_code_mcp.installed_plugins import bundled_plugins, sections_of
from claude_code_mcp.plugins.fleet.nats_server import MAX_MESSAGE
from claude_code_mcp.server.transports.http import read_address

from .deployment import (
    DEPLOY,
    IMAGE_WRITABLE,
    KUBERNETES,
    ROOT,
    CommandLine,
    Workload,
    command_lines,
    documents,
    files,
    json_of,
    kustomization,
    read_yaml,
    text_of,
    workloads,
)

KINDS: list[type[Section]] = [Settings, *sections_of(bundled_plugins())]
SETTINGS = {variable_of(field, kind) for kind in KINDS for field in kind.model_fields}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEALTH = {"/health", "/ready"}


def parsed(arguments: tuple[str, ...]) -> Any:
    """As the program parses its arguments: what begins with a flag is for `serve`."""
    return build_parser().parse_args(["serve", *arguments] if arguments[0].startswith("-") else list(arguments))


@pytest.mark.parametrize("line", command_lines(), ids=str)
def test_every_command_line_is_taken(line: CommandLine) -> None:
    parsed(line.arguments)


def test_the_command_lines_of_every_kind_of_file_are_found() -> None:
    found = {line.where for line in command_lines()}
    assert found == {
        "bundle/manifest.json",
        "claude-code-mcp-fleet.service",
        "claude-code-mcp-runner.service",
        "claude-code-mcp.service",
        "container/Containerfile",
        "container/fleet.compose.yaml",
        "kubernetes/fleet-nats/gateway.yaml",
        "kubernetes/fleet-nats/runner.yaml",
        "kubernetes/fleet/gateway.yaml",
        "kubernetes/fleet/runner.yaml",
        "kubernetes/team/server.yaml",
        "registry/server.json",
    }


def test_a_flag_that_does_not_exist_is_found() -> None:
    with pytest.raises(InvalidArgument):
        parsed(("runner", "--ticket", "x"))


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(DEPLOY)))
def test_every_variable_of_ours_is_a_setting(file: Path) -> None:
    named = set(re.findall(r"\b(?:CLAUDE_CODE_[A-Z0-9_]*[A-Z0-9]|MAX_SESSIONS)\b", file.read_text(encoding="utf-8")))
    assert named - SETTINGS <= {"CLAUDE_CODE_MCP"}  # before an ellipsis


@pytest.mark.parametrize("page", ["team.md", "fleet.md"])
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"`(deploy/[\w./-]+)`", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


# -- the image --------------------------------------------------------------------------------------------------------


def test_the_image_has_the_extras_that_its_users_need() -> None:
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", text_of("container/Containerfile"))
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    assert {"cli", "fleet", "oauth"} <= set(extras.split(","))


def test_the_image_is_built_from_what_a_checkout_has() -> None:
    """Also where the package is not built yet, and with a .dockerignore that leaves these files in."""
    ignored = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", text_of("container/Containerfile"), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    needed = {"pyproject.toml", "constraints.txt", PROJECT["readme"], *PROJECT["license-files"], "src"}
    assert set(copied) == needed
    assert not needed & ignored
    assert all((ROOT / source).exists() for source in copied)


def test_the_registry_can_tell_whose_image_it_is() -> None:
    name = json_of("registry/server.json")["name"]
    assert f'LABEL io.modelcontextprotocol.server.name="{name}"' in text_of("container/Containerfile")


def test_the_image_keeps_its_state_where_volumes_are_mounted() -> None:
    text = text_of("container/Containerfile")
    (state,) = re.findall(rf"{variable_of('state_dir', Settings)}=(\S+)", text)
    assert state in IMAGE_WRITABLE
    assert "--home-dir /home/claude" in text


# -- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", workloads(), ids=str)
def test_pods_have_no_privileges(workload: Workload) -> None:
    (uid,) = re.findall(r"^USER (\d+)$", text_of("container/Containerfile"), re.MULTILINE)
    context = workload.pod["securityContext"]
    assert context["runAsNonRoot"] is True
    assert (context["runAsUser"], context["fsGroup"]) == (int(uid), int(uid))
    # Otherwise each start makes the files of the volume readable for the group, and keys that are so are refused.
    assert context["fsGroupChangePolicy"] == "OnRootMismatch"
    assert workload.pod["automountServiceAccountToken"] is False
    for container in workload.containers:
        allowed = container["securityContext"]
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("workload", workloads(), ids=str)
def test_all_that_is_written_is_on_a_volume(workload: Workload) -> None:
    mounted = {mount["mountPath"] for mount in workload.main["volumeMounts"]}
    assert mounted >= IMAGE_WRITABLE
    used = {mount["name"] for container in workload.containers for mount in container["volumeMounts"]}
    assert used <= workload.volumes()
    for variable in workload.main["env"]:
        value = str(variable.get("value", ""))
        if value.startswith("/"):
            assert any(value.startswith(f"{place}/") for place in mounted), value
    for path in re.findall(r"(?<=\s)(/[\w./-]+)", " ".join(workload.main["args"])):
        assert any(path.startswith(f"{place}/") for place in mounted), path


@pytest.mark.parametrize("workload", workloads(), ids=str)
def test_directories_that_are_part_of_a_volume_are_made_first(workload: Workload) -> None:
    parts = {mount["subPath"] for mount in workload.main["volumeMounts"] if "subPath" in mount}
    (made,) = [each["command"] for each in workload.pod["initContainers"] if each["name"] == "directories"]
    assert {path.rpartition("/")[2] for path in made if path.startswith("/volume/")} == parts
    assert made[:4] == ["install", "-d", "-m", "700"]


@pytest.mark.parametrize("workload", [each for each in workloads() if "runner" not in str(each)], ids=str)
def test_probes_ask_for_what_is_served_there(workload: Workload) -> None:
    container = workload.main
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[kind]["httpGet"]
        assert asked["path"] in HEALTH
        assert ports[asked["port"]] == read_address(parsed(tuple(container["args"])).http).port


@pytest.mark.parametrize("directory", ["team", "fleet"])
def test_services_lead_to_pods(directory: str) -> None:
    found = documents(directory)
    pods = {
        document["spec"]["template"]["metadata"]["labels"]["app"]: document["spec"]["template"]["spec"]["containers"]
        for document in found
        if "template" in document["spec"]
    }
    for document in found:
        if document["kind"] == "Service":
            (container,) = pods[document["spec"]["selector"]["app"]]
            named = {port["name"] for port in container["ports"]}
            assert {port["targetPort"] for port in document["spec"]["ports"]} == named
        if document["kind"] == "Ingress":
            (rule,) = document["spec"]["rules"]
            (path,) = rule["http"]["paths"]
            (service,) = [each for each in found if each["kind"] == "Service"]
            assert path["backend"]["service"]["name"] == service["metadata"]["name"]
            assert document["spec"]["tls"][0]["hosts"] == [rule["host"]]


def test_machines_join_where_the_gateway_listens() -> None:
    (gateway,) = [each for each in workloads() if str(each) == "fleet/claude-code-mcp-gateway"]
    up = parsed(tuple(gateway.main["args"]))
    (service,) = [each for each in documents("fleet") if each["kind"] == "Service"]
    host, _, port = up.address.partition(":")
    assert host == service["metadata"]["name"]
    assert int(port) in {each["port"] for each in service["spec"]["ports"]}
    assert int(up.listen.rpartition(":")[2]) in {each["containerPort"] for each in gateway.main["ports"]}


def test_the_policy_of_the_example_is_one() -> None:
    (generated,) = kustomization("team")["configMapGenerator"]
    for name in generated["files"]:
        text = (KUBERNETES / "team" / name).read_text(encoding="utf-8")
        assert parse_policy(text, name)
    (pod,) = [each.pod for each in workloads() if str(each).startswith("team/")]
    assert generated["name"] in {each["configMap"]["name"] for each in pod["volumes"] if "configMap" in each}


def test_the_values_for_the_chart_of_nats_are_those_of_the_embedded_server() -> None:
    values = read_yaml(text_of("kubernetes/fleet-nats/nats-values.yaml"))["config"]
    assert values["jetstream"]["merge"]["sync_interval"] == "always"
    assert values["merge"]["max_payload"] == f"<< {MAX_MESSAGE >> 20}MB >>"
    assert values["nats"]["tls"]["enabled"] is True
    addresses = {
        f"tls://nats-{index}.nats-headless:4222" for index in range(values["cluster"]["replicas"])
    }  # as the chart names its pods
    for workload in workloads():
        if str(workload).startswith("fleet-nats/"):
            line = parsed(tuple(workload.main["args"]))
            assert set(line.nats.split(",")) == addresses
            made = " ".join(workload.pod["initContainers"][1]["args"])
            assert f"install -m 600 /nats-users/$POD_NAME.creds {line.creds}" in made


# -- compose, systemd -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["compose.yaml", "fleet.compose.yaml"])
def test_compose_files_use_volumes_that_they_declare(name: str) -> None:
    compose = read_yaml(text_of(f"container/{name}"))
    for service in compose["services"].values():
        mounts = [mount.split(":") for mount in service["volumes"]]
        assert {source for source, *_ in mounts if not source.startswith(".")} <= set(compose["volumes"])
        if service["image"] == "claude-code-mcp":
            assert service["read_only"] is True
            assert service["cap_drop"] == ["ALL"]
            targets = {target for _, target, *_ in mounts} | set(service["tmpfs"])
            assert targets >= (IMAGE_WRITABLE if "/home/claude" in targets else {"/state", "/tickets", "/tmp"})


def test_a_machine_that_was_removed_is_not_started_again() -> None:
    unit = text_of("systemd/claude-code-mcp-runner.service")
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert {int(code) for code in codes.split()} == {ExitCode.MISUSE, ExitCode.REFUSED}


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_units_write_only_where_they_may(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    made = {
        f"{place}/{name}"
        for kind, place in (("State", "%S"), ("Runtime", "%t"))
        for line in re.findall(rf"^{kind}Directory=(.*)$", text, re.MULTILINE)
        for name in line.split()
    }
    for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE):
        assert {assignment.partition("=")[2] for assignment in shlex.split(line)} <= made


# -- the registry, and the bundle for desktops ------------------------------------------------------------------------


def test_versions_are_that_of_the_package() -> None:
    server, bundle = json_of("registry/server.json"), json_of("bundle/manifest.json")
    assert {server["version"], bundle["version"]} == {__version__}
    for directory in ("team", "fleet"):
        assert [image["newTag"] for image in kustomization(directory)["images"]] == [__version__]


def test_the_entry_for_the_registry_is_as_its_schema_demands() -> None:
    server = json_of("registry/server.json")
    assert re.fullmatch(
        r"https://static\.modelcontextprotocol\.io/schemas/\d{4}-\d\d-\d\d/server\.schema\.json", server["$schema"]
    )
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"])
    assert 3 <= len(server["name"]) <= 200
    assert 1 <= len(server["title"]) <= 100
    assert 1 <= len(server["description"]) <= 100
    assert server["repository"]["source"] == "github"
    for icon in server["icons"]:
        path = icon["src"].partition("/main/")[2]
        assert (ROOT / path).read_bytes()[:4] == b"\x89PNG"
        assert icon["mimeType"] == "image/png"
    packages = {package["registryType"]: package for package in server["packages"]}
    assert set(packages) == {"pypi", "oci", "mcpb"}
    assert packages["pypi"]["identifier"] == PROJECT["name"]
    assert packages["pypi"]["version"] == __version__
    assert packages["oci"]["identifier"].endswith(f"/{PROJECT['name']}:{__version__}")
    assert (
        packages["mcpb"]["identifier"]
        == f"{server['repository']['url']}/releases/download/v{__version__}/claude-code-mcp.mcpb"
    )
    for package in packages.values():
        assert package["transport"] == {"type": "stdio"}
        for argument in package.get("packageArguments", ()):
            # A flag is a named argument; the parser of the command line is asked by another test.
            assert argument["type"] == ("named" if argument.get("name", "").startswith("-") else "positional")
        for variable in package.get("environmentVariables", ()):
            assert set(variable) <= {"name", "description", "isRequired", "isSecret", "format", "default"}
            assert variable["name"] in SETTINGS | {"ANTHROPIC_API_KEY"}
            assert variable.get("format", "string") in ("string", "number", "boolean", "filepath")


def test_the_hash_of_the_bundle_is_added_for_the_registry(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.mcpb"
    bundle.write_bytes(b"content")
    script, entry = DEPLOY / "registry" / "add_hash.py", DEPLOY / "registry" / "server.json"
    printed = subprocess.run([sys.executable, script, entry, bundle], capture_output=True, text=True, check=True).stdout
    made = json.loads(printed)
    assert made["packages"][-1].pop("fileSha256") == hashlib.sha256(b"content").hexdigest()
    assert made == json_of("registry/server.json")


def test_the_package_index_can_show_whose_entry_it_is() -> None:
    """The registry looks for this line in the description of the package, which is the README."""
    name = json_of("registry/server.json")["name"]
    assert f"<!-- mcp-name: {name} -->" in (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")


def test_the_manifest_of_the_bundle_is_as_its_schema_demands() -> None:
    manifest = json_of("bundle/manifest.json")
    assert set(manifest) >= {"manifest_version", "name", "version", "description", "author", "server"}
    assert manifest["description"] == PROJECT["description"]
    assert manifest["license"] == PROJECT["license"]
    assert manifest["compatibility"]["runtimes"]["python"] == PROJECT["requires-python"]
    server = manifest["server"]
    assert server["type"] == "uv"
    assert (ROOT / server["entry_point"]).is_file()
    arguments = server["mcp_config"]["args"]
    assert PROJECT["name"] in PROJECT["scripts"]
    assert arguments[arguments.index("--extra") + 1] in PROJECT["optional-dependencies"]
    variables = server["mcp_config"]["env"]
    assert set(variables) <= SETTINGS
    used = set(re.findall(r"\$\{user_config\.(\w+)\}", " ".join([*variables.values(), *arguments])))
    assert used == set(manifest["user_config"])
    for asked in manifest["user_config"].values():
        assert set(asked) >= {"type", "title", "description"}


def test_extensions_of_other_clients_start_the_shared_server() -> None:
    plugin, extension = json_of("codex/.codex-plugin/plugin.json"), json_of("gemini/gemini-extension.json")
    for manifest in (plugin, extension):
        assert (manifest["name"], manifest["version"]) == (PROJECT["name"], __version__)
        assert manifest["description"] == PROJECT["description"]
    assert (DEPLOY / "codex" / plugin["mcpServers"]).is_file()
    for servers in (json_of("codex/.mcp.json")["mcpServers"], extension["mcpServers"]):
        (entry,) = servers.values()
        assert entry["command"] in PROJECT["scripts"]
        assert parsed(tuple(entry["args"])).shared


def test_codex_finds_the_plugin_in_the_marketplace_of_the_checkout() -> None:
    marketplace = json.loads((ROOT / ".agents" / "plugins" / "marketplace.json").read_text(encoding="utf-8"))
    (listed,) = marketplace["plugins"]
    assert (listed["name"], listed["source"]["source"]) == (PROJECT["name"], "local")
    plugin = json.loads((ROOT / listed["source"]["path"] / ".codex-plugin" / "plugin.json").read_text(encoding="utf-8"))
    assert plugin["name"] == listed["name"]
    assert listed["policy"] == {"installation": "AVAILABLE", "authentication": "ON_INSTALL"}


def test_the_bundle_has_what_its_package_is_built_from() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (copied,) = re.findall(r"^\tcp -R (.*) build/bundle$", makefile, re.MULTILINE)
    needed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "src", "deploy/bundle/manifest.json"}
    assert set(copied.split()) == needed


# -- the reader of these tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a: yes", "a: 010", "a: 1.20", "a: 22:22", "a: 1\na: 2", "a:\n  b: 1\n c: 2"])
def test_files_that_readers_of_yaml_understand_differently_are_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        read_yaml(text)
