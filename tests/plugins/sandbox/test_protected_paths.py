"""Which directories can be given to a sandbox: none that holds something of the operator's, there already or not."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import Settings, load_settings
from claude_code_mcp.core.policy.policy import Profile
from claude_code_mcp.plugins.sandbox.protected_paths import ProtectedPaths, protected_paths
from claude_code_mcp.plugins.sandbox.sandbox_contents import ListedPaths

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no sandbox on Windows")


class Machine:
    """A home, a place for projects and a server, of which only the directories above exist."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home" / "op"
        self.projects = root / "srv"
        for directory in (self.home, self.projects / "shop", root / "state", root / "tools"):
            directory.mkdir(parents=True)
        self.environment = {"HOME": str(self.home), "PATH": f"/usr/bin:{root / 'tools'}"}

    def protected(self, **settings: Any) -> ProtectedPaths:
        return protected_paths(self.settings(**settings), self.environment)

    def settings(self, **settings: Any) -> Settings:
        places: dict[str, Any] = {
            "state_dir": self.root / "state",
            "hub_file": self.home / ".config/claude-code-mcp/mcp.json",
        }
        return load_settings({}, **{**places, **settings})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("root", "because"),
    [
        ("home/op", "contains"),
        ("home", "contains"),
        (".", "contains"),
        ("home/op/.config", "mcp.json"),
        ("home/op/.config/claude-code-mcp", "mcp.json"),
        ("home/op/.config/claude-code-mcp/below", "is inside"),
        ("home/op/.ssh", ".ssh"),
        ("home/op/.aws/below", ".aws"),
        ("home/op/.claude/projects", ".claude"),
        ("state", "/state)"),
        ("state/principals/alice", "/state)"),
        ("tools", "PATH"),
    ],
)
def test_nothing_of_the_operators_is_given_though_it_does_not_exist_yet(
    machine: Machine, root: str, because: str
) -> None:
    conflict = machine.protected().conflict(os.path.normpath(machine.root / root))
    assert conflict is not None
    assert because in conflict


@pytest.mark.parametrize(
    "root", ["srv", "srv/shop", "srv/not-there-yet", "home/op/src", "home/op/.dotfiles", "tools/x"]
)
def test_other_directories_are_given(machine: Machine, root: str) -> None:
    assert machine.protected().conflict(str(machine.root / root)) is None


@pytest.mark.parametrize("root", ["/", "/usr", "/etc", "/proc", "/var"])
def test_no_part_of_the_system_is_given(machine: Machine, root: str) -> None:
    assert machine.protected().conflict(root) is not None


@pytest.mark.parametrize("file", ["http_tokens_file", "policy_file", "hub_file", "audit_file", "runtime_dir"])
def test_a_file_of_the_server_in_a_root_is_a_conflict_wherever_the_operator_keeps_it(
    machine: Machine, file: str
) -> None:
    shop = str(machine.projects / "shop")
    assert machine.protected().conflict(shop) is None
    assert machine.protected(**{file: machine.projects / "shop" / "etc" / "it"}).conflict(shop) is not None


def test_a_link_to_or_from_a_root_leads_past_nothing(machine: Machine) -> None:
    shop = machine.projects / "shop"
    (machine.home / ".npmrc").symlink_to("../../srv/shop/npmrc")  # the file is in the root
    assert "keys" in str(machine.protected().conflict(str(shop)))
    (machine.home / ".npmrc").unlink()
    assert machine.protected().conflict(str(shop)) is None
    # The link itself is in the root: whoever works there can have it lead to a policy of its own.
    (shop / "policy.toml").symlink_to(machine.root / "policy.toml")
    (machine.root / "link").symlink_to(shop / "policy.toml")
    assert "policy" in str(machine.protected(policy_file=machine.root / "link").conflict(str(shop)))
    (machine.root / "loop").symlink_to("loop")
    assert machine.protected(policy_file=machine.root / "loop").conflict(str(shop / "x")) is None


def test_a_directory_is_known_by_another_name(machine: Machine) -> None:
    other = machine.root / "srv" / "same"
    other.mkdir()
    done = subprocess.run(["mount", "--bind", machine.home, other], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert "contains" in str(machine.protected().conflict(str(other)))
        (machine.home / ".ssh" / "below").mkdir(parents=True)
        assert "/.ssh)" in str(machine.protected().conflict(str(other / ".ssh" / "below")))
    finally:
        subprocess.run(["umount", other], check=True)


@pytest.mark.parametrize("requested", ["home/op/.cache/x", "home/op/.dotfiles", "tmp/claude-code-mcp-1.2.3.4-files"])
def test_unlisted_directories_are_checked_more_strictly(machine: Machine, requested: str) -> None:
    directory = str(machine.root / requested)
    assert machine.protected().conflict(directory) is None
    assert machine.protected().conflict_of_choice(directory) is not None


@pytest.mark.parametrize("requested", ["/usr/src/linux", "/etc/apt", "/proc/self", "/"])
def test_system_directories_cannot_be_working_directories(machine: Machine, requested: str) -> None:
    assert machine.protected().conflict_of_choice(requested) is not None


def test_a_profile_can_list_a_key_to_be_read_but_nothing_that_holds_keys_and_nothing_of_the_server(
    machine: Machine,
) -> None:
    def problem(**profile: object) -> str | None:
        listed = ListedPaths.of(Profile(**profile), str(machine.projects), machine.environment)  # type: ignore[arg-type]
        return listed.problem(machine.protected(http_tokens_file=machine.root / "tokens"))

    assert problem(readable=("~/.ssh/known_hosts", "~/.nvm")) is None
    assert str(machine.home) in str(problem(readable=("~",)))
    assert "tokens" in str(problem(readable=(str(machine.root / "tokens"),)))
    assert "cannot be given access to it" in str(problem(writable=("~/.ssh",)))
    assert "cannot be given access to it" in str(problem(roots=(str(machine.projects), "~")))
    assert problem(roots=(".",), writable=("~/.cache/pip",)) is None
    (machine.projects / "shop" / "link").symlink_to(machine.home)
    assert "cannot be given access to it" in str(problem(roots=("shop/link",)))


def test_programs_that_run_outside_are_in_no_root(machine: Machine) -> None:
    """What a session could change there would run outside of its sandbox: this very package, or Claude Code."""
    package = Path(__file__).parents[3]
    assert "claude_code_mcp" in str(machine.protected().conflict(str(package)))
    claude = machine.projects / "shop" / "node_modules" / ".bin" / "claude"
    assert "Claude Code program" in str(
        machine.protected(claude_path=str(claude)).conflict(str(machine.projects / "shop"))
    )
    machine.environment["PATH"] += f":{machine.projects}/shop/node_modules/.bin"
    assert "PATH" in str(machine.protected().conflict(str(machine.projects / "shop")))
