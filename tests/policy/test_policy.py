"""The policy file: read whole or refused in one line that names the entry."""

import pytest

from claude_code_mcp.errors import InvalidArgument
from claude_code_mcp.policy.policy import LOCAL_PROFILE, REMOTE_PROFILE, Policy, built_in, parse_policy
from tests.support.tables import every_row

TEAM = """
default = "team"

[profiles.team]
roots = ["/srv/projects"]
allow = ["Bash(git diff *)"]
deny = ["Bash(rm *)", "mcp__files__*"]
limits = { daily_usd = 20, sessions = 2 }

[profiles.lead]
base = "team"
mode_ceiling = "bypassPermissions"
bypass = "confirm"

[principals]
alice = "lead"
ci = "remote"
"""


def test_a_policy_in_full() -> None:
    policy = parse_policy(TEAM, "p.toml")
    team, lead = policy.profile("anybody"), policy.profile("alice")
    assert team.roots == lead.roots == ("/srv/projects",)
    assert [str(rule) for rule in team.deny] == ["Bash(rm *)", "mcp__files__*"]
    assert (team.limits.daily_usd, team.limits.sessions) == (20, 2)
    assert team.limits.turns == REMOTE_PROFILE.limits.turns
    assert (team.bypass, lead.bypass) == ("never", "confirm")
    assert team.env == REMOTE_PROFILE.env
    assert policy.profile("ci") == REMOTE_PROFILE


def test_the_profile_for_everybody_else() -> None:
    assert parse_policy("", "p").default == REMOTE_PROFILE
    assert parse_policy("", "p", fallback="local").default == LOCAL_PROFILE
    assert parse_policy(TEAM, "p", default="local").default == LOCAL_PROFILE
    assert parse_policy(TEAM, "p", fallback="local").default == parse_policy(TEAM, "p").profile("x")
    assert built_in("remote") == Policy(REMOTE_PROFILE)


def test_a_profile_may_be_written_over_and_emptied() -> None:
    policy = parse_policy('[profiles.remote]\nbase = "remote"\nroots = []\nallow = []\ntools = []', "p")
    assert policy.default.roots == policy.default.tools == ()
    assert policy.default.bypass == "never"


@every_row(
    ("text", "named"),
    [
        ("default = ", "not valid TOML"),
        ("other = 1", "other"),
        ('default = "nobody"', "default: there is no profile 'nobody'"),
        ("default = 1", "default"),
        ("profiles = 1", "profiles"),
        ("[profiles]\nx = 1", "profiles: x"),
        ("[profiles.x]\nrots = []", "profiles.x.rots: unknown entry"),
        ('[profiles.x]\nbase = "y"', "profiles.x.base"),
        ('[profiles.x]\nroots = "/srv"', "profiles.x.roots: must be a list"),
        ("[profiles.x]\nroots = [1]", "profiles.x.roots.0"),
        ('[profiles.x]\nmode_ceiling = "yolo"', "profiles.x.mode_ceiling: must be one of"),
        ('[profiles.x]\nbypass = "yes"', "profiles.x.bypass"),
        ('[profiles.x]\nallow = ["Bash("]', "profiles.x.allow: 'Bash(' is not a rule"),
        ("[profiles.x]\ndeny = [3]", "profiles.x.deny"),
        ('[profiles.x]\ntools = ["Bash(ls)"]', "profiles.x.tools: 'Bash(ls)'"),
        ('[profiles.x]\nexecutable = "no"', "profiles.x.executable"),
        ("[profiles.x.limits]\nturns = 0", "profiles.x.limits.turns"),
        ("[profiles.x.limits]\ndaily = 1", "profiles.x.limits.daily: unknown entry"),
        ("[profiles.x]\nlimits = 3", "profiles.x.limits"),
        ('[principals]\nbob = "nobody"', "principals.bob: there is no profile 'nobody'"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_policy(text, "policy.toml")
    assert "policy.toml" in caught.value.message
    assert named in caught.value.message
    assert "\n" not in caught.value.message
