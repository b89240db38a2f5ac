"""Sessions in a container. With TEST_CONTAINER_IMAGE, an image that the engine has and that can run Claude Code's own
program, on the real engine; else on a stand-in for the engine, which runs the command as it is told to, without a
container. What a container keeps in is then not shown, but that everything is said to the engine."""

import asyncio
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.policy.policy import Policy, Profile, Resources
from claude_code_mcp.core.processes.limits import ResourceLimits
from claude_code_mcp.plugins.sandbox.bubblewrap import Mount, SandboxView
from claude_code_mcp.plugins.sandbox.container import isolate, unavailable
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers are tried on Linux")

IMAGE = os.environ.get("TEST_CONTAINER_IMAGE", "")
STAND_IN = """#!{python} -IS
import os, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    print(*arguments, sep="\\0", file=log)
if arguments[:2] == ["image", "inspect"]:
    sys.exit(0 if arguments[-1] == "known" else "Error: no such image")
if arguments[0] != "run":
    sys.exit(0)
options = dict(zip(arguments, arguments[1:]))
with open(options["--env-file"]) as file:
    environment = dict(line.rstrip("\\n").split("=", 1) for line in file)
os.chdir(options["--workdir"])
image = arguments.index("known")
os.execve(options["--entrypoint"], [options["--entrypoint"], *arguments[image + 1:]], environment)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The directory of a stand-in for Podman, which notes what it is told."""
    directory = tmp_path / "engine"
    directory.mkdir()
    program = directory / "podman"
    program.write_text(STAND_IN.format(python=sys.executable, log=str(tmp_path / "told")))
    program.chmod(0o755)
    return directory


def engine_calls(tmp_path: Path, command: str) -> list[list[str]]:
    lines = [line.split("\0") for line in (tmp_path / "told").read_text().splitlines()]
    return [line for line in lines if line[0] == command]


# -- what the engine is told ---------------------------------------------------------------------------------------


def test_a_view_becomes_the_arguments_of_an_engine_and_no_value_of_it_is_among_them(
    tmp_path: Path, engine: Path
) -> None:
    project = tmp_path / "a, b"
    project.mkdir()
    descriptor = os.open(project, os.O_PATH)
    view = SandboxView(
        (Mount(str(project), descriptor, True), Mount("/config", None), Mount("/config/settings", "/etc/hostname")),
        cwd=str(project),
        environment={"KEY": "sk-secret-of-the-session", "HOME": "/home/x"},
        network=False,
        limits=ResourceLimits(memory=1 << 30, processes=64, cpus=1.5, cpu_seconds=60, file_size=1 << 20),
    )
    isolated = isolate(view, ["/bin/echo", "hello"], tmp_path, {"PATH": str(engine), "DOCKER_HOST": "x"}, "known")
    argv = " ".join(isolated.argv)
    assert isolated.argv[-4:] == ["--entrypoint", "/bin/echo", "known", "hello"]
    for part in ("--network none", "--cap-drop all", "no-new-privileges", "--read-only", "--pull never", "--rm"):
        assert part in argv
    for part in ("--memory 1073741824", "--pids-limit 64", "--cpus 1.5", "cpu=60:60", "fsize=1048576:1048576"):
        assert part in argv
    mounts = [value for option, value in zip(isolated.argv, isolated.argv[1:], strict=False) if option == "--mount"]
    assert mounts == [
        f"type=bind,src={tmp_path}/tmp,dst=/tmp",
        "type=tmpfs,dst=/config,tmpfs-size=268435456",
        "type=bind,src=/etc/hostname,dst=/config/settings,readonly",
        f'type=bind,"src={project}","dst={project}"',
    ]
    assert "sk-secret" not in argv
    variables = tmp_path / "environment"
    assert variables.read_text() == "KEY=sk-secret-of-the-session\nHOME=/home/x\n"
    assert stat.S_IMODE(variables.stat().st_mode) == 0o600
    assert isolated.environment["DOCKER_HOST"] == "x"
    assert "KEY" not in isolated.environment
    assert isolated.removal[1:3] == ("rm", "--force")
    assert isolated.removal[-1] in isolated.argv
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_unsupported_container_contents_are_refused(tmp_path: Path, engine: Path) -> None:
    view = SandboxView((), "/", {"HEADERS": "a: b\nc: d"})
    with pytest.raises(OSError, match="several lines"):
        isolate(view, ["/bin/true"], tmp_path, {"PATH": str(engine)}, "known")


def test_why_there_can_be_no_container_is_named(tmp_path: Path, engine: Path) -> None:
    assert unavailable({"PATH": str(tmp_path)}, "known") == "neither Podman nor Docker is installed"
    assert unavailable({"PATH": str(engine)}, "unknown") == "podman: Error: no such image"
    assert unavailable({"PATH": str(engine)}, "known") is None


def test_a_container_needs_an_image() -> None:
    with pytest.raises(ValueError, match="needs an image"):
        Profile(isolation="container")
    with pytest.raises(ValueError, match="image"):
        Profile(isolation="container", image="--privileged")


# -- sessions ------------------------------------------------------------------------------------------------------


def policy(sandbox: Sandbox, image: str, **entries: object) -> Policy:
    resources = Resources(memory=2 << 30, processes=200)
    roots = (str(sandbox.project),)
    return Policy(Profile(isolation="container", image=image, roots=roots, resources=resources, **entries))  # type: ignore[arg-type]


async def test_container_runs_with_the_given_arguments_and_is_removed(
    start_service: StartService, sandbox: Sandbox, tmp_path: Path, engine: Path
) -> None:
    path = f"{engine}:{os.environ['PATH']}"
    service = await start_service(
        extra={"PATH": path, "DEPLOY_CRED": "hunter2"}, policy=policy(sandbox, "known", network="host")
    )
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
    turn = await service.create(script("go", tool("Bash", command="env > seen; pwd >> seen"), "done"), options)
    assert (await end_of(turn)).result == "done"
    seen = (sandbox.project / "seen").read_text()
    assert "hunter2" not in seen
    assert seen.endswith(f"{sandbox.project}\n")
    (run,) = engine_calls(tmp_path, "run")
    assert f"type=bind,src={sandbox.project},dst={sandbox.project}" in run
    assert not any("sk-scripted" in argument for argument in run)
    await service.cancel(turn.session.id)
    await turn.session.closed()
    (removal,) = engine_calls(tmp_path, "rm")
    assert removal[-1] == run[run.index("--name") + 1]


async def test_the_start_is_refused_without_an_engine_or_its_image(
    start_service: StartService, sandbox: Sandbox, engine: Path
) -> None:
    for path, reason in (("/nowhere", "is installed"), (str(engine), "no such image")):
        with pytest.raises(InvalidArgument, match=reason):
            await start_service(extra={"PATH": path}, policy=policy(sandbox, "unknown"))


@pytest.mark.skipif(not IMAGE, reason="TEST_CONTAINER_IMAGE names no image")
@pytest.mark.parametrize("network", ["host", "model"])
async def test_a_real_container_shows_what_was_given_and_nothing_else(
    start_service: StartService, sandbox: Sandbox, network: str
) -> None:
    service = await start_service(
        extra={"PATH": os.environ["PATH"], "DEPLOY_CRED": "hunter2"}, policy=policy(sandbox, IMAGE, network=network)
    )
    secret = sandbox.root / "secret"
    secret.write_text("of the operator")
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
    command = f"{{ cat {secret}; env; touch /usr/x {sandbox.home}/x; echo fine; }} > seen 2>&1; true"
    turn = await service.create(script("go", tool("Bash", command=command), "done"), options)
    assert (await end_of(turn)).result == "done"
    seen = (sandbox.project / "seen").read_text()
    assert "fine" in seen
    assert "of the operator" not in seen
    assert "hunter2" not in seen
    assert not (sandbox.home / "x").exists()
    await service.cancel(turn.session.id)
    await turn.session.closed()
    engine = shutil.which("podman") or shutil.which("docker")
    listed = await asyncio.create_subprocess_exec(
        *(str(engine), "ps", "--all", "--format", "{{.Names}}"), stdout=asyncio.subprocess.PIPE
    )
    names, _ = await listed.communicate()
    assert f"claude-code-mcp-{os.getpid()}." not in names.decode()
