"""Callers can only tighten: whatever reaches above the ceiling is refused, and the refusal names the field."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied
from claude_code_mcp.core.model.options import SessionOptions, ToolPreset
from claude_code_mcp.core.policy.admission import Admission, may_set
from claude_code_mcp.core.policy.policy import LOCAL_PROFILE, MODE_LADDER, OPEN_PROFILE, REMOTE_PROFILE, Limits, Profile
from claude_code_mcp.core.policy.rules import parse_rule
from tests.support.tables import every_row


def resolve(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def admit(profile: Profile, *, bypass_on: bool = False, default: str = "/", **requested_options: Any) -> SessionOptions:
    return Admission(profile, resolve, default, bypass_on).admit(SessionOptions(**requested_options))


def refused(profile: Profile, **requested_options: Any) -> str:
    with pytest.raises(PermissionDenied) as caught:
        admit(profile, **requested_options)
    assert caught.value.message.startswith(caught.value.data["field"])
    return str(caught.value.data["field"])


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A base with a directory in it, a sibling whose name begins alike, and links both ways."""
    for name in ("base/app", "base-old", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "base" / "escape").symlink_to(tmp_path / "outside")
    (tmp_path / "base" / "circle").symlink_to(tmp_path / "base" / "circle")
    (tmp_path / "door").symlink_to(tmp_path / "base")
    return tmp_path


@every_row("path", ["base", "base/", "base/app", "base/app/..", "door/app", "base/./app", "base/not-yet"])
def test_directories_below_a_root_are_admitted_as_they_really_are(disk: Path, path: str) -> None:
    profile = Profile(roots=(f"{disk}/base",))
    admitted = admit(profile, cwd=f"{disk}/{path}")
    assert admitted.cwd == os.path.realpath(disk / path)


@every_row(
    "path",
    ["", "base-old", "outside", "base/..", "base/../outside", "base/escape", "base/escape/deeper", "door/../outside"],
)
def test_every_way_out_of_the_roots_is_closed(disk: Path, path: str) -> None:
    profile, inside = Profile(roots=(f"{disk}/base/",)), f"{disk}/base/app"
    assert refused(profile, cwd=f"{disk}/{path}") == "cwd"
    assert refused(profile, cwd=inside, additional_directories=(f"{disk}/{path}",)) == "additional_directories"
    assert refused(profile, cwd=inside, debug_file=f"{disk}/{path}/log") == "debug_file"


def test_relative_paths_start_where_they_should_and_cannot_climb_out(disk: Path) -> None:
    profile, default = Profile(roots=(".",)), f"{disk}/base"
    admitted = admit(profile, default=default, cwd="app", additional_directories=("../app",))
    assert (admitted.cwd, admitted.additional_directories) == (f"{disk}/base/app", (f"{disk}/base/app",))
    assert refused(profile, default=default, cwd="../outside") == "cwd"
    assert refused(profile, default=default, cwd="app", additional_directories=("../../outside",))


def test_a_missing_directory_becomes_the_default_and_is_checked_too(disk: Path) -> None:
    assert admit(Profile(roots=(".",)), default=f"{disk}/base").cwd == f"{disk}/base"
    assert refused(Profile(roots=(f"{disk}/base",)), default=f"{disk}/outside") == "cwd"


def test_no_roots_is_nowhere_and_unset_roots_are_anywhere(disk: Path) -> None:
    assert refused(Profile(roots=()), cwd=str(disk)) == "cwd"
    assert admit(Profile(), cwd="anything/../at all").cwd == "anything/../at all"


def test_a_path_with_nul_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        admit(Profile(roots=("/",)), cwd="/a\0b")


@every_row("ceiling", MODE_LADDER[:-1])
@every_row("mode", MODE_LADDER)
def test_no_mode_above_the_ceiling(ceiling: str, mode: str) -> None:
    profile = Profile(mode_ceiling=ceiling)
    if MODE_LADDER.index(mode) <= MODE_LADDER.index(ceiling):
        assert admit(profile, permission_mode=mode).permission_mode == mode
    else:
        assert refused(profile, permission_mode=mode) == "permission_mode"


def test_a_mode_that_is_left_open_is_not_left_to_settings_files() -> None:
    assert admit(Profile(mode_ceiling="acceptEdits")).permission_mode == "default"
    assert admit(Profile(mode_ceiling="plan")).permission_mode == "plan"
    assert admit(Profile()).permission_mode is None


def test_an_unknown_mode_is_refused_under_a_ceiling() -> None:
    assert admit(Profile(mode_ceiling="default"), permission_mode="manual").permission_mode == "manual"
    with pytest.raises(InvalidArgument, match="delegate"):
        admit(Profile(mode_ceiling="acceptEdits"), permission_mode="delegate")


BYPASSES: list[dict[str, Any]] = [
    {"permission_mode": "bypassPermissions"},
    {"dangerously_skip_permissions": True},
    {"agents": {"a": {"permissionMode": "bypassPermissions"}}},
]


@every_row("requested", BYPASSES)
def test_bypass_admission(requested: dict[str, Any]) -> None:
    admit(Profile(bypass="allow"), **requested)
    admit(Profile(bypass="confirm"), bypass_on=True, **requested)
    refused(Profile(bypass="confirm"), **requested)
    refused(Profile(bypass="never"), bypass_on=True, **requested)
    refused(Profile(mode_ceiling="auto", bypass="allow"), bypass_on=True, **requested)


def test_tools_can_be_fewer_never_more() -> None:
    profile = Profile(tools=("Read", "Bash", "mcp__files__*"))
    assert admit(profile).tools == ("Read", "Bash")
    assert admit(profile, tools=("Read",)).tools == ("Read",)
    assert admit(profile, tools=ToolPreset()).tools == ("Read", "Bash")
    assert refused(profile, tools=("Read", "Write")) == "tools"
    assert refused(profile, allowed_tools=("Write(src/**)",)) == "allowed_tools"
    assert admit(profile, allowed_tools=("Bash(ls *)", "mcp__files__read")).allowed_tools
    assert refused(profile, allowed_tools=("mcp__other__read",)) == "allowed_tools"
    assert refused(profile, mcp_servers={"other": {"command": "x"}}) == "mcp_servers"
    assert refused(profile, agents={"a": {"tools": ["Read", "Write"]}}) == "agents.a.tools"


def test_where_a_person_must_allow_nobody_allows_beforehand() -> None:
    profile = Profile(answers="person", allow=(parse_rule("Bash(git diff *)"),))
    assert admit(profile, allowed_tools=("Bash(git diff *)",)).allowed_tools
    assert refused(profile, allowed_tools=("Bash(git diff *)", "Read")) == "allowed_tools"
    assert admit(profile, disallowed_tools=("Bash",)).disallowed_tools == ("Bash",)


def test_an_empty_list_of_tools_allows_none_and_no_foreign_servers() -> None:
    admitted = admit(Profile(tools=()))
    assert admitted.tools == ()
    assert admitted.strict_mcp_config
    assert refused(Profile(tools=()), tools=("Read",)) == "tools"


def test_denials_of_the_policy_are_added_to_those_of_the_caller() -> None:
    admitted = admit(Profile(deny=(parse_rule("Bash(rm *)"),)), disallowed_tools=("Write",))
    assert admitted.disallowed_tools == ("Write", "Bash(rm *)")


POISON = [
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "PATH", "Path", "NODE_OPTIONS", "PYTHONPATH"),
    *("PYTHONSTARTUP", "ANTHROPIC_BASE_URL", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "CLAUDE_CONFIG_DIR"),
    *("CLAUDE_CODE_SHELL_PREFIX", "CLAUDECODE", "HOME", "BASH_ENV", "BASH_FUNC_ls%%", "GIT_SSH_COMMAND"),
    *(
        "NODE_TLS_REJECT_UNAUTHORIZED",
        "SSL_CERT_FILE",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "IS_SANDBOX",
        "ANTHROPIC_API_KEY",
    ),
    *("PERL5OPT", "RUBYOPT", "JAVA_TOOL_OPTIONS", "XDG_CONFIG_HOME", "TMPDIR", "SHELL", "IFS", "PAGER", "LESSOPEN"),
]


@every_row("name", POISON)
def test_no_pattern_lets_a_caller_choose_programs_endpoints_or_homes(name: str) -> None:
    assert refused(Profile(env=("*",)), env={name: "x"}) == "env"
    assert refused(LOCAL_PROFILE, env={name: "x"}) == "env"
    assert refused(REMOTE_PROFILE, env={name: "x"}) == "env"
    assert may_set(name, (name,))


def test_variables_are_those_of_the_list() -> None:
    assert admit(Profile(env=("APP_*",)), env={"APP_MODE": "x"}).env == {"APP_MODE": "x"}
    assert refused(Profile(env=("APP_*",)), env={"OTHER": "x"}) == "env"
    assert refused(Profile(env=()), env={"ANY": "x"}) == "env"


def test_programs_and_servers_of_the_callers_choice() -> None:
    strict = Profile(executable=False, mcp_servers=("http",))
    assert refused(strict, executable="/tmp/evil") == "executable"
    assert refused(strict, mcp_servers={"a": {"command": "evil"}}) == "mcp_servers"
    assert refused(strict, mcp_servers={"a": {"type": "http", "url": "x", "command": "evil"}}) == "mcp_servers"
    assert refused(strict, mcp_servers={"a": {"type": "sse", "url": "x"}}) == "mcp_servers"
    assert refused(strict, mcp_servers={"a": {"type": "http", "url": "x", "headersHelper": "evil"}}) == "mcp_servers"
    assert refused(strict, sandbox={"ripgrep": {"command": "evil"}}) == "sandbox.ripgrep"
    assert admit(strict, mcp_servers={"a": {"type": "http", "url": "x"}}).mcp_servers
    assert refused(strict, agents={"a": {"hooks": {"Stop": []}}}) == "agents.a.hooks"
    assert refused(strict, agents={"a": {"mcpServers": [{"b": {"command": "evil"}}]}}) == "agents.a.mcpServers"
    assert refused(strict, agents={"a": {"mcpServers": {"b": {"command": "evil"}}}}) == "agents.a.mcpServers"


def test_settings_files_can_be_fewer_never_more() -> None:
    profile = Profile(setting_sources=("user", "project"))
    assert admit(profile).setting_sources == ("user", "project")
    assert admit(profile, setting_sources=()).setting_sources == ()
    assert refused(profile, setting_sources=("user", "local")) == "setting_sources"


def test_a_profile_without_a_shell_trusts_no_project_unless_it_says_so() -> None:
    without = Profile(tools=("Read", "Write"))
    assert admit(without).setting_sources == ("user",)
    assert refused(without, setting_sources=("user", "project")) == "setting_sources"
    trusting = without.model_copy(update={"setting_sources": ("user", "project", "local")})
    assert admit(trusting).setting_sources == ("user", "project", "local")


def test_limits_are_filled_with_the_ceiling_and_never_exceeded() -> None:
    profile = Profile(limits=Limits(turns=10, session_usd=2.0, turn_seconds=60))
    filled = admit(profile)
    assert (filled.max_turns, filled.max_budget_usd, filled.turn_timeout) == (10, 2.0, 60)
    less = admit(profile, max_turns=3, max_budget_usd=0.5, turn_timeout=9.0)
    assert (less.max_turns, less.max_budget_usd, less.turn_timeout) == (3, 0.5, 9.0)
    assert refused(profile, max_turns=11) == "max_turns"
    assert refused(profile, max_budget_usd=2.01) == "max_budget_usd"
    assert refused(profile, turn_timeout=61.0) == "turn_timeout"


def test_a_suggestion_that_lifts_a_ceiling_is_not_offered(disk: Path) -> None:
    admission = Admission(Profile(roots=(f"{disk}/base",), mode_ceiling="default"), resolve, "/")
    rule = {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "allow"}
    offered: list[Any] = [
        rule,
        {"type": "setMode", "mode": "acceptEdits"},
        {"type": "setMode", "mode": "plan"},
        {"type": "addDirectories", "directories": [f"{disk}/outside"]},
        {"type": "addDirectories", "directories": [f"{disk}/base/app"]},
        "nonsense",
        {"type": "removeRules", "rules": [{"toolName": "Bash"}], "behavior": "deny"},
        {"type": "replaceRules", "rules": [{"toolName": "Bash"}], "behavior": "allow"},
        {**rule, "behavior": "deny"},
        {"rules": [{"toolName": "Bash"}]},
    ]
    assert admission.suggestions(offered, f"{disk}/base") == [offered[0], offered[2], offered[4]]


def test_without_a_policy_nothing_is_changed() -> None:
    requested_options = SessionOptions(cwd="x", max_turns=5, permission_mode="bypassPermissions")
    assert Admission(OPEN_PROFILE, resolve, "/").admit(requested_options) == requested_options


options = st.fixed_dictionaries(
    {},
    optional={
        "permission_mode": st.sampled_from(MODE_LADDER),
        "max_turns": st.integers(1, 400),
        "max_budget_usd": st.floats(0.01, 20),
        "turn_timeout": st.floats(1, 9999),
        "allowed_tools": st.lists(st.sampled_from(["Bash", "Read", "Edit(src/**)"])).map(tuple),
        "tools": st.lists(st.sampled_from(["Bash", "Read", "Edit"])).map(tuple),
        "setting_sources": st.lists(st.sampled_from(["user", "project", "local"])).map(tuple),
        "env": st.dictionaries(st.sampled_from(["CI", "LC_ALL", "PATH", "FOO"]), st.just("x")),
    },
)
profiles = st.sampled_from(
    [
        REMOTE_PROFILE,
        LOCAL_PROFILE,
        Profile(tools=("Bash", "Read"), deny=(parse_rule("Bash(rm *)"),), roots=("/tmp",)),
        Profile(mode_ceiling="plan", limits=Limits(turns=3)),
    ]
)


@given(profiles, options)
def test_what_was_admitted_is_admitted_again_unchanged(profile: Profile, requested_options: dict[str, Any]) -> None:
    try:
        admitted = admit(profile, default="/tmp", **requested_options)
    except ClaudeCodeError:
        return
    assert Admission(profile, resolve, "/tmp").admit(admitted) == admitted


@every_row(
    ("field", "requested_options"),
    [
        ("sandbox.enabled", {"enabled": False}),
        ("sandbox.enabled", {"enabled": 1}),
        ("sandbox.autoAllowBashIfSandboxed", {"autoAllowBashIfSandboxed": True}),
        ("sandbox.allowUnsandboxedCommands", {"allowUnsandboxedCommands": True}),
        ("sandbox.excludedCommands", {"excludedCommands": ["docker"]}),
        ("sandbox.network.allowedDomains", {"network": {"allowedDomains": ["*"]}}),
        ("sandbox.network", {"network": None}),
        ("sandbox.filesystem.allowWrite", {"filesystem": {"denyRead": [], "allowWrite": ["/"]}}),
        ("sandbox.enableWeakerNestedSandbox", {"enableWeakerNestedSandbox": True}),
    ],
)
def test_the_sandbox_of_claude_code_can_only_be_made_tighter(field: str, requested_options: dict[str, Any]) -> None:
    assert refused(REMOTE_PROFILE, sandbox=requested_options) == field
    assert admit(LOCAL_PROFILE, sandbox=requested_options).sandbox == requested_options


def test_stricter_sandbox_is_accepted_and_commands_still_ask() -> None:
    requested_options = {
        "enabled": True,
        "network": {"deniedDomains": ["example.org"]},
        "filesystem": {"denyWrite": ["/srv"]},
    }
    admitted = admit(REMOTE_PROFILE, sandbox=requested_options).sandbox
    assert admitted == {**requested_options, "autoAllowBashIfSandboxed": False, "allowUnsandboxedCommands": False}
    assert admit(REMOTE_PROFILE).sandbox is None
