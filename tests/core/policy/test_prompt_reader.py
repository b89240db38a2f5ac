"""What a prompt would set off in Claude Code by itself."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.policy.admission import Admission, mentioned_paths, mentioned_servers, slash_command
from claude_code_mcp.core.policy.policy import REMOTE_PROFILE, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from tests.support.tables import every_row


@every_row(
    ("prompt", "command"),
    [
        ("/config", "config"),
        ("/config theme=dark", "config"),
        ("/config\u00a0x", "config"),
        (" \n\u200b\ufeff/config", "config"),
        ("/mcp__docs__summary x", "mcp__docs__summary"),
        ("/plugin:command", "plugin:command"),
        ("/usr/bin/env is missing", None),
        ("/ config", None),
        ("//config", None),
        ("see /config", None),
        ("", None),
    ],
)
def test_a_command_is_what_stands_behind_a_slash_at_the_beginning(prompt: str, command: str | None) -> None:
    assert slash_command(prompt) == command


@every_row(
    ("prompt", "paths"),
    [
        ("look at @/etc/passwd", ["/etc/passwd"]),
        ("@/etc/passwd#L1-5, please", ["/etc/passwd"]),
        ('@"/a b/c d.txt" x', ["/a b/c d.txt"]),
        ("@~/x @../y", ["~/x", "../y"]),
        ("see @/etc/passwd.", ["/etc/passwd"]),
        ("\u3002@/etc/passwd", ["/etc/passwd"]),
        ("\t@dir/\n", ["dir"]),
    ],
)
def test_a_mention_is_read_in_every_way_that_claude_code_may_read_it(prompt: str, paths: Sequence[str]) -> None:
    assert set(paths) <= set(mentioned_paths(prompt))


@every_row("prompt", ["me@example.org", "import x from '@/components'", "no mention", '@""'])
def test_an_at_sign_inside_a_word_mentions_nothing(prompt: str) -> None:
    assert not [path for path in mentioned_paths(prompt) if path]


def test_a_resource_is_mentioned_with_its_server() -> None:
    assert list(mentioned_servers("see @docs:file://x and @/etc/passwd")) == ["docs"]


def admission(profile: Profile) -> Admission:
    return Admission(profile, lambda path: path.replace("/srv/link", "/etc"), "/srv")


@every_row("prompt", ["/compact", "/clear", "/mcp__docs__ask x", "hello", "@in.txt", "@/srv/x", "/srv/x?"])
def test_remote_profile_allows(prompt: str) -> None:
    admission(REMOTE_PROFILE).check_prompt("prompt", prompt, "/srv")


@every_row("prompt", ["/config", "/heapdump", "/COMPACT", "@/etc/passwd", "@../x", "@link/passwd"])
def test_remote_profile_denies(prompt: str) -> None:
    with pytest.raises(PermissionDenied, match="prompt: "):
        admission(REMOTE_PROFILE).check_prompt("prompt", prompt, "/srv")


def test_prompts_and_resources_of_a_denied_server_are_refused() -> None:
    denying = admission(Profile(deny=(parse_rule("mcp__docs__*"),)))
    for prompt in ("/mcp__docs__ask", "see @docs:page"):
        with pytest.raises(PermissionDenied):
            denying.check_prompt("prompt", prompt, "/srv")
    denying.check_prompt("prompt", "/config and @other:page", "/srv")


def test_a_mentioned_file_that_may_not_be_read_is_refused() -> None:
    denying = admission(Profile(deny=(parse_rule("Read(**/*.env)"),)))
    with pytest.raises(PermissionDenied):
        denying.check_prompt("prompt", "look at @sub/prod.env", "/srv")
    denying.check_prompt("prompt", "look at @sub/other", "/srv")


def test_missing_files_may_be_mentioned() -> None:
    nothing = Admission(REMOTE_PROFILE, lambda path: path, "/srv", exists=lambda path: False)
    nothing.check_prompt("prompt", "import from @/components", "/srv")


@pytest.mark.parametrize(
    "path",
    [
        "missing/../../secret",
        "a\n/../../secret",
        f"{'./' * 3000}../secret",
        f"{'x/../' * 3000}../secret",
        "deep/../../secret",
    ],
)
def test_every_spelling_of_a_path_is_resolved(tmp_path: Path, path: str) -> None:
    """`..` behind a name that is missing, has a line break or is a link, or behind more than a path can have."""
    root = tmp_path / "root"
    (root / "one" / "two").mkdir(parents=True)
    (root / "deep").symlink_to(root / "one" / "two")
    for place in (tmp_path, root):
        (place / "secret").touch()
    profile = Profile(roots=(str(root),))
    looking = Admission(profile, os.path.realpath, str(root), exists=os.path.lexists)
    for prompt in {f'look at @"{path}"', f"look at @{path}"} if "\n" not in path else {f'look at @"{path}"'}:
        with pytest.raises(PermissionDenied):
            looking.check_prompt("prompt", prompt, str(root))
    looking.check_prompt("prompt", 'look at @secret and @missing and @"one/../secret"', str(root))
    looking.check_prompt("prompt", f"look at @{'x' * 9000} and @{'x/' * 9000}", str(root))


def test_more_mentions_than_can_be_looked_up_are_refused() -> None:
    with pytest.raises(PermissionDenied):
        admission(REMOTE_PROFILE).check_prompt("prompt", " ".join(f"@{n}" for n in range(5000)), "/srv")
