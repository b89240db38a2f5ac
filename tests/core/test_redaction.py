"""Secrets do not leave, everything else does."""

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.text import mark
from claude_code_mcp.core.redaction import MARK, Redactor, is_secret_name
from tests.support.tables import every_row

SECRETS = {
    "anthropic": "sk-ant-api03-AbCdEf0123456789-xyz",
    "openai": "sk-proj-AbCdEf0123456789AbCdEf",
    "github": "ghp_AbCdEf0123456789AbCdEf0123456789AbCd",
    "github fine": "github_pat_11AAAAAAA0abcdefghijkl_mnopqrstuvwxyz",
    "gitlab": "glpat-AbCdEf0123456789AbCd",
    "slack": "xoxb-123456789012-abcdefghijkl",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "stripe": "sk_live_AbCdEf0123456789",
    "npm": "npm_AbCdEf0123456789AbCdEf0123456789AbCd",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "key": "-----BEGIN RSA PRIVATE KEY-----\nMIIEabc\ndef==\n-----END RSA PRIVATE KEY-----",
}


@every_row("secret", SECRETS.values())
@every_row("around", ["{}", "x={}", '"{}"', "({}) and", "key: {}\nnext", "https://h/p?q={}&r=1", "'{}',"])
def test_well_known_secret_formats(secret: str, around: str) -> None:
    text = Redactor().text(around.format(secret))
    assert text == around.format(MARK)


@every_row(
    ("text", "redacted"),
    [
        ("Authorization: Bearer abc.def-123", f"Authorization: Bearer {MARK}"),
        ("authorization: Basic dXNlcjpwYXNz", f"authorization: Basic {MARK}"),
        ("AUTHORIZATION=opaque-value", f"AUTHORIZATION={MARK}"),
        ('{"Authorization": "Bearer abc12345"}', f'{{"Authorization": "Bearer {MARK}"}}'),
        ('"{\\"authorization\\": \\"abc12345\\"}"', f'"{{\\"authorization\\": \\"{MARK}\\"}}"'),
        ("curl -H 'X-Api-Key: abc12345'", f"curl -H 'X-Api-Key: {MARK}'"),
        ("sent bearer AbCdEf0123456789", f"sent bearer {MARK}"),
        ("Cookie: sid=abc; other=def\nHost: x", f"Cookie: {MARK}\nHost: x"),
        ("postgres://bob:hunter2@db/x", f"postgres://{MARK}@db/x"),
        ("https://token@github.com/a/b", f"https://{MARK}@github.com/a/b"),
        ("postgres://bob:p@ss@db/x", f"postgres://{MARK}@db/x"),
        ("sent bearer abc123", f"sent bearer {MARK}"),
        ("sent Basic dXNlcjpwYXNz", f"sent Basic {MARK}"),
        ("-----BEGIN PRIVATE KEY-----\\nMIIE", MARK),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nabc\n-----END PGP PRIVATE KEY BLOCK-----.", f"{MARK}."),
        ("/cb?access_token=abcd1234&x=1", f"/cb?access_token={MARK}&x=1"),
    ],
)
def test_where_a_secret_is_expected(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted


@every_row(
    "text",
    [
        "The bearer of bad news",
        "Basic authentication and basic understanding",
        "AUTHORIZATION is a Basic Thing",
        "authorization is checked in auth.py",
        "https://example.org/@user/page",
        "mail bob@example.org",
        "git@github.com:a/b.git",
        "def token(key): return key",
        "5f0c1a3e-8d5b-4b0e-9f0a-0d6d7f3f2b11",
        "sk-learn, task-force-alpha-beta-gamma",
        "risk-averse-and-quite-long-hyphenated-word",
        "max_tokens=4096&x=1",
        "cookie: a small cake",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


@every_row(
    ("name", "secret"),
    [
        *(
            (name, True)
            for name in ("API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "clientSecret", "TOKEN")
        ),
        *((name, True) for name in ("AWS_SECRET_ACCESS_KEY", "NPM_AUTH", "SENTRY_DSN", "GH_PAT", "SLACK_WEBHOOK")),
        *((name, False) for name in ("PATH", "PWD", "HOME", "SSH_AUTH_SOCK", "XAUTHORITY", "TOKENS_FILE", "KEYBOARD")),
        *((name, False) for name in ("MAX_OUTPUT_TOKENS", "AWS_ACCESS_KEY_ID", "AUTHOR", "MONKEY", "LC_ALL", "TERM")),
    ],
)
def test_names_of_variables_that_hold_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_known_secrets_in_every_spelling() -> None:
    secret = 'pa"ss/wörd&1'
    redactor = Redactor([secret])
    for shown_as in (
        secret,
        json.dumps(secret),
        json.dumps({"a": secret}, ensure_ascii=False),
        quote(secret, safe=""),
    ):
        assert "wörd" not in redactor.text(f"<{shown_as}>")
        assert secret not in redactor.text(f"<{shown_as}>")
        assert MARK in redactor.text(f"<{shown_as}>")


def test_a_secret_inside_another_leaves_nothing_of_either() -> None:
    assert Redactor(["abcdefgh", "abcdefgh-and-more"]).text("x abcdefgh-and-more y abcdefgh") == f"x {MARK} y {MARK}"


def test_short_and_ordinary_values_are_not_mistaken_for_secrets() -> None:
    redactor = Redactor()
    redactor.learn({"A_TOKEN": "true", "B_SECRET_FILE": "/run/secrets/b", "C_PASSWORD": "xxxxxxxx", "D": "plain-value"})
    text = "true /run/secrets/b xxxxxxxx plain-value"
    assert redactor.text(text) == text


@pytest.mark.parametrize("secret", ["/9j4AAQSkZJRg+x", "12345678", "~tilde-secret", "./dotted", "--------1a"])
def test_secret_is_detected_with_any_prefix(secret: str) -> None:
    redactor = Redactor()
    redactor.learn({"A_PASSWORD": secret})
    assert redactor.text(f"<{secret}>") == f"<{MARK}>"


KEY_OF_SEVERAL_LINES = (
    "-----BEGIN THING-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7\n-----END THING-----"
)


@pytest.mark.parametrize(
    "shown_as",
    [
        KEY_OF_SEVERAL_LINES,
        KEY_OF_SEVERAL_LINES.replace("\n", "\r\n"),
        json.dumps({"key": KEY_OF_SEVERAL_LINES}),
        json.dumps(json.dumps({"key": KEY_OF_SEVERAL_LINES})),
        KEY_OF_SEVERAL_LINES.replace("\n", "\n    "),
        "".join(f"{number:6}→{line}\n" for number, line in enumerate(KEY_OF_SEVERAL_LINES.splitlines(), 1)),
    ],
)
def test_a_secret_of_several_lines_is_hidden_however_its_lines_are_shown(shown_as: str) -> None:
    shown = Redactor([KEY_OF_SEVERAL_LINES]).text(shown_as)
    assert "MIIE" not in shown
    assert "BKcw" not in shown


@pytest.mark.parametrize("end", ["", "…", "… [900 characters cut]", "\n… (12 more characters)", "...", mark(9, 99)])
def test_a_secret_that_was_cut_short_is_still_hidden(end: str) -> None:
    secret = "opaque-value-0123456789-abcdefghij"
    assert Redactor([secret]).text(f"key {secret[:20]}{end}") == f"key {MARK}{end}"


def test_the_beginning_of_a_secret_elsewhere_is_an_ordinary_word() -> None:
    redactor = Redactor(["postgres://bob:hunter2@db/x"])
    assert redactor.text("We use postgres") == "We use postgres"
    assert redactor.text("postgres://bob:h and more") == "postgres://bob:h and more"


def test_secrets_that_overlap_leave_nothing_of_either() -> None:
    assert Redactor(["abcdefgh-ijkl", "ijkl-mnopqrst"]).text("x abcdefgh-ijkl-mnopqrst y") == f"x {MARK} y"


class Owner:
    """Something that has secrets as long as it lives."""


def test_a_secret_in_use_is_never_forgotten_however_many_there_are() -> None:
    redactor, owner, others = Redactor(["of-the-server-itself"]), Owner(), [Owner() for _ in range(25)]
    longest = "the-longest-secret-of-them-all" * 10
    redactor.add([longest], owner)
    for number, other in enumerate(others):
        redactor.add([f"secret-{at}-of-owner-{number}" for at in range(100)], other)
    text = redactor.text(f"{longest} of-the-server-itself secret-0-of-owner-0 secret-99-of-owner-24")
    assert text == " ".join([MARK] * 4)


def test_latest_secrets_of_departed_owners_stay_known() -> None:
    redactor, kept = Redactor(), Owner()
    redactor.add(["shared-by-two-owners"], kept)
    redactor.add(["shared-by-two-owners", "the-first-one-learned"], Owner())
    for number in range(0, 1500, 50):
        redactor.add([f"secret-number-{number + at}" for at in range(50)], Owner())
    redactor.add(["another-one"])
    assert redactor.text("the-first-one-learned") == "the-first-one-learned"
    assert redactor.text("shared-by-two-owners secret-number-1499") == f"{MARK} {MARK}"


def test_endlessly_nested_values_are_redacted() -> None:
    nested: list[object] = ["known-secret-1"]
    for _ in range(100_000):
        nested = [nested]
    redactor = Redactor(["known-secret-1"])
    redactor.learn_from(nested)
    assert "known-secret-1" not in str(redactor.data(nested))


def test_secrets_are_learned_from_variables_and_options() -> None:
    redactor = Redactor()
    redactor.learn({"MY_TOKEN": "first-opaque-value"})
    redactor.learn_from(
        {"mcp_servers": {"a": {"headers": {"Authorization": "Bearer second-opaque"}, "env": {"X_KEY": "third-opaque"}}}}
    )
    redactor.learn_from([{"env": {"Y_PASSWORD": "fourth-opaque"}}])
    text = redactor.text("first-opaque-value second-opaque third-opaque fourth-opaque")
    assert text == " ".join([MARK] * 4)


def test_data_keeps_its_shape() -> None:
    redactor = Redactor(["known-secret-1"])
    data = {
        "a": ["known-secret-1", 1, None, True, 1.5],
        "headers": {"X-API-Key": "q"},
        "known-secret-1": {"password": ""},
    }
    assert redactor.data(data) == {
        "a": [MARK, 1, None, True, 1.5],
        "headers": {"X-API-Key": MARK},
        MARK: {"password": ""},
    }
    assert redactor.data("plain") == "plain"


def test_a_megabyte_is_read_to_its_end() -> None:
    text = ("def handler(request): return render(request, 'page.html')\n" * 18_000) + SECRETS["github"]
    redactor = Redactor(f"opaque-value-{number}" for number in range(50))
    assert redactor.text(text).endswith(MARK)


pieces = st.one_of(
    st.text(max_size=10),
    st.sampled_from(list(SECRETS.values())),
    st.sampled_from(
        ["Authorization: ", "Bearer ", "https://", "@", ":", "?token=", '"', "\n", " ", "known-secret-1", MARK]
    ),
)


@given(st.lists(pieces, max_size=8).map("".join))
def test_redacting_twice_changes_nothing_and_no_secret_is_left(text: str) -> None:
    redactor = Redactor(["known-secret-1"])
    once = redactor.text(text)
    assert redactor.text(once) == once
    assert "known-secret-1" not in once
