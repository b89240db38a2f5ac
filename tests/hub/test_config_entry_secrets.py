"""Secrets of a configuration, kept out of everything that is shown."""

import pytest

from claude_code_mcp.core.redaction import MARK, is_secret_name, redact_headers, redact_url
from claude_code_mcp.hub.config_entry import parse_entry


@pytest.mark.parametrize(
    "name", ["Authorization", "x-api-key", "Cookie", "X-Auth-Token", "GITHUB_TOKEN", "DB_PASSWORD", "AWS_SECRET_KEY"]
)
def test_names_that_hold_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["Accept", "User-Agent", "PATH", "X-Keyboard", "monkey"])
def test_other_names_are_left_alone(name: str) -> None:
    assert not is_secret_name(name)


def test_headers_are_shown_without_their_secrets() -> None:
    assert redact_headers({"authorization": "Bearer x", "Accept": "y"}) == {"authorization": MARK, "Accept": "y"}


def test_an_address_is_shown_without_credentials_and_parameters() -> None:
    assert redact_url("https://me:pw@example.com/mcp?token=abc") == "https://example.com/mcp?…"


def test_secrets_of_a_remote_entry_appear_in_no_text() -> None:
    entry = {
        "url": "https://u:hunter22@a/b?k=parameter",
        "headers": {"Authorization": "Bearer abcdef123"},
        "oauth": {"clientSecret": "oauthsecret"},
    }
    redact = parse_entry("x", entry, {}).secrets_redactor().text
    text = redact("hunter22 k=parameter abcdef123 oauthsecret and Bearer whatever.else")
    assert text == f"{MARK} {MARK} {MARK} {MARK} and Bearer {MARK}"


def test_secrets_of_a_program_entry_appear_in_no_text() -> None:
    entry = {
        "command": "run",
        "args": ["--api-key=argument1", "--token", "argument2", "--verbose", "plain"],
        "env": {"MY_TOKEN": "variable1", "MODE": "production"},
    }
    config = parse_entry("x", entry, {})
    assert config.secrets_redactor().text("variable1 production") == f"{MARK} production"
    assert config.describe()["command"] == f"run --api-key={MARK} --token {MARK} --verbose plain"
