"""The head of a request on its way from a sandbox to the model."""

import pytest

from claude_code_mcp.claude.model_socket import ModelSocket, forwarded_head

KEY, TOKEN = "sk-ant-the-real-key", "the-real-token"
SOCKET = ModelSocket({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": TOKEN, "ANTHROPIC_BASE_URL": "https://a.b:1/c"})
GIVEN = SOCKET.variables()
SECRETS = {GIVEN["ANTHROPIC_API_KEY"]: KEY, GIVEN["ANTHROPIC_AUTH_TOKEN"]: TOKEN}


def forwarded(*lines: str) -> list[str]:
    head = "\r\n".join(["POST /v1/messages HTTP/1.1", *lines, "", ""]).encode()
    return forwarded_head(head, SECRETS).decode().split("\r\n")[1:-2]


def test_claude_code_is_given_placeholders_and_an_address_without_encryption() -> None:
    assert KEY not in str(GIVEN)
    assert TOKEN not in str(GIVEN)
    assert GIVEN["ANTHROPIC_BASE_URL"] == "http://a.b:1/c"
    assert "CLAUDE_CODE_OAUTH_TOKEN" not in GIVEN


def test_the_credentials_take_the_place_of_their_placeholders() -> None:
    key, token = SECRETS
    assert forwarded(f"X-Api-Key: {key}", "Host: a.b") == [f"X-Api-Key: {KEY}", "Host: a.b", "Connection: close"]
    assert forwarded(f"authorization: Bearer {token}")[0] == f"authorization: Bearer {TOKEN}"


@pytest.mark.parametrize("header", ["X-Note: {}", "X-Api-Key: {} and more", "Authorization: Basic {}", "Cookie: k={}"])
def test_a_placeholder_anywhere_else_stays_what_it_is(header: str) -> None:
    line = header.format(GIVEN["ANTHROPIC_API_KEY"])
    assert forwarded(line) == [line, "Connection: close"]


def test_each_connection_is_for_one_request() -> None:
    assert forwarded("Connection: keep-alive", "Keep-Alive: timeout=5") == ["Connection: close"]
