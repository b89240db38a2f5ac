"""The policy file: read whole or refused in one line that names the entry."""

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.policy.policy import LOCAL_PROFILE, REMOTE_PROFILE, Policy, built_in, parse_policy
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


def test_default_profile() -> None:
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
def test_problem_is_named_in_one_line(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_policy(text, "policy.toml")
    assert "policy.toml" in caught.value.message
    assert named in caught.value.message
    assert "\n" not in caught.value.message


def test_a_policy_says_what_a_denial_to_read_covers() -> None:
    rules = '[profiles.x]\ndeny = ["Read(**/.env)", "Bash(rm *)"]'
    outside = parse_policy(f'default = "x"\n{rules}\nisolation = "none"\n', "p").notes()
    assert len(outside) == 1
    assert outside[0].startswith("Read(**/.env): outside a sandbox")
    assert "history of git" in outside[0]
    (inside,) = parse_policy(f'default = "x"\n{rules}\nisolation = "sandbox"\n', "p").notes()
    assert "empty for commands in the sandbox" in inside
    assert parse_policy(f'default = "x"\n{rules}\ntools = ["Read"]\n', "p").notes() == [], "there are no commands"
    assert built_in("remote").notes() == []


def test_resources_are_amounts_and_each_is_inherited_by_itself() -> None:
    text = '[profiles.team.resources]\nmemory = "2G"\n[profiles.more]\nbase = "team"\nresources = { processes = 64 }'
    policy = parse_policy(f'default = "more"\n{text}', "policy.toml")
    resources = policy.default.resources
    assert (resources.memory, resources.processes) == (2 << 30, 64)
    assert resources.file_size == REMOTE_PROFILE.resources.file_size


@pytest.mark.parametrize("wrong", ['memory = "much"', "memory = 1", "processes = 1", 'cpus = "2"', "disk = 1"])
def test_a_resource_that_is_no_amount_is_named(wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=f"profiles.team.resources.{wrong.partition(' ')[0]}"):
        parse_policy(f"[profiles.team.resources]\n{wrong}", "policy.toml")


def test_variables_are_listed_by_name_and_not_by_pattern() -> None:
    with pytest.raises(InvalidArgument, match="not a variable name"):
        parse_policy('[profiles.team]\nenvironment = ["AWS_*"]', "policy.toml")


# -- the network and credentials ---------------------------------------------------------------------------------------

LISTED = """
[profiles.team]
isolation = "sandbox"
network = ["api.github.com", "*.example.org", "127.0.0.1:8080"]

[profiles.guest]
isolation = "sandbox"
network = "model"
"""
CREDENTIAL = '\n[[credentials]]\nhost = "api.github.com"\nheader = "Authorization"\nfrom = "env:GITHUB_TOKEN"\n'


def test_a_network_is_a_list_of_hosts_too_and_credentials_go_where_a_list_has_their_host() -> None:
    policy = parse_policy(f'{LISTED}{CREDENTIAL}\n[principals]\nann = "team"\nbob = "guest"\n', "p")
    ann, bob = policy.profile("ann"), policy.profile("bob")
    assert [rule.text for rule in ann.hosts or ()] == ["api.github.com", "*.example.org", "127.0.0.1:8080"]
    assert bob.hosts is None
    assert ([rule.header for rule in ann.credentials], bob.credentials) == (["Authorization"], ())
    assert policy.default.credentials == ()


def test_a_credential_can_be_for_some_profiles_alone() -> None:
    more = '\n[profiles.other]\nbase = "team"\n'
    policy = parse_policy(
        f'{LISTED}{more}{CREDENTIAL}profiles = ["other"]\n\n[principals]\nann = "team"\nbob = "other"\n', "p"
    )
    assert [len(policy.profile(name).credentials) for name in ("ann", "bob")] == [0, 1]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('[profiles.x]\nisolation = "sandbox"\nnetwork = ["https://example.org"]', "profiles.x.network"),
        ('[profiles.x]\nisolation = "sandbox"\nnetwork = ["*"]', "profiles.x.network"),
        ('[profiles.x]\nisolation = "sandbox"\nnetwork = [1]', "profiles.x.network"),
        ('[profiles.x]\nisolation = "sandbox"\nnetwork = "internet"', "profiles.x.network"),
        ('[profiles.x]\nisolation = "auto"\nnetwork = ["example.org"]', "profiles.x"),
        ('[profiles.x]\nisolation = "none"\nnetwork = []', "profiles.x"),
        (f'{LISTED}{CREDENTIAL}more = 1', "credentials[0].more"),
        (f'{LISTED}{CREDENTIAL}prefix = 1', "credentials[0].prefix"),
        (f'{LISTED}{CREDENTIAL.replace("api.github.com", "other.example")}', "credentials[0].host"),
        (f'{LISTED}{CREDENTIAL.replace("env:", "cmd:")}', "credentials[0]"),
        (f'{LISTED}{CREDENTIAL.replace("Authorization", "Host")}', "credentials[0]"),
        (f'{LISTED}{CREDENTIAL}profiles = ["nobody"]', "credentials[0].profiles"),
        (f'{LISTED}{CREDENTIAL}profiles = ["guest"]', "credentials[0].host"),
        (f'{LISTED}[[credentials]]\nhost = "api.github.com"\nheader = "X"', "credentials[0].from"),
        (f'credentials = "x"\n{LISTED}', "credentials"),
        (f'{LISTED}[[profiles.team.credentials]]\nhost = "x"', "profiles.team.credentials"),
    ],
)  # fmt: skip
def test_invalid_host_lists_and_credentials_are_named(text: str, named: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        parse_policy(text, "p")
    assert named in refusal.value.message
