"""The head of a request on its way from a sandbox to the model."""

import pytest

from claude_code_mcp.claude.model_socket import ModelSocket, costs_something, forwarded_head

KEY, TOKEN = "sk-ant-the-real-key", "the-real-token"
SOCKET = ModelSocket({"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": TOKEN, "ANTHROPIC_BASE_URL": "https://a.b:1/c"})
GIVEN = SOCKET.replaced({})
SECRETS = {GIVEN["ANTHROPIC_API_KEY"]: KEY, GIVEN["ANTHROPIC_AUTH_TOKEN"]: TOKEN}


def forwarded(*lines: str) -> list[str]:
    head = "\r\n".join(["POST /v1/messages HTTP/1.1", *lines, "", ""]).encode()
    first, *rest = forwarded_head(head, SECRETS).decode().split("\r\n")[1:-2]
    assert first == "Accept-Encoding: identity", "the answer is read on its way"
    return rest


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


def test_headers_of_the_operator_are_put_in_here_and_claude_code_is_not_told_of_them() -> None:
    environment = {
        "ANTHROPIC_BASE_URL": "https://me:p%40ss@gateway.example/c",
        "ANTHROPIC_CUSTOM_HEADERS": "X-Team: red\nno header\nbad name: x\nX-Empty:\nHost: other",
    }
    socket = ModelSocket(environment)
    assert socket.replaced({**environment, "LANG": "C"}) == {
        "LANG": "C",
        "ANTHROPIC_BASE_URL": "http://gateway.example/c",
        "ANTHROPIC_UNIX_SOCKET": "/run/model.sock",
    }
    head = b"POST /v1/messages HTTP/1.1\r\n continued\r\nx-team : blue\r\nAuthorization: Basic eDp5\r\n\r\n"
    added = {"Authorization": "Basic bWU6cEBzcw==", "X-Team": "red"}
    assert forwarded_head(head, SECRETS, added).decode().split("\r\n")[1:] == [
        "Authorization: Basic bWU6cEBzcw==",
        "X-Team: red",
        "Accept-Encoding: identity",
        " continued",
        "Connection: close",
        "",
        "",
    ]


def test_a_credential_has_the_authorization_before_the_address() -> None:
    given = GIVEN["ANTHROPIC_AUTH_TOKEN"]
    head = f"GET / HTTP/1.1\r\nAuthorization: Bearer {given}\r\n\r\n".encode()
    sent = forwarded_head(head, SECRETS, {"Authorization": "Basic eDp5"}).decode()
    assert f"Authorization: Bearer {TOKEN}" in sent
    assert "Basic" not in sent


def test_each_connection_is_for_one_request() -> None:
    assert forwarded("Connection: keep-alive", "Keep-Alive: timeout=5") == ["Connection: close"]


def test_no_compression_is_asked_for() -> None:
    assert forwarded("Accept-Encoding: gzip, br", "Host: a.b") == ["Host: a.b", "Connection: close"]


@pytest.mark.parametrize(
    ("line", "costs"),
    [
        ("POST /v1/messages HTTP/1.1", True),
        ("POST /v1/messages?beta=true HTTP/1.1", True),
        ("POST /v1/messages/count_tokens?beta=true HTTP/1.1", False),
        ("GET /v1/models HTTP/1.1", False),
        ("HEAD / HTTP/1.1", False),
        ("POST /api/event_logging/batch HTTP/1.1", False),
        ("POST /v1/messages/batches HTTP/1.1", None),
        ("POST /v1/complete HTTP/1.1", None),
        ("POST /v1/messages/ HTTP/1.1", None),
        ("POST //v1/messages/batches HTTP/1.1", None),
        ("POST /v1/messages/%62atches HTTP/1.1", None),
        ("POST /v1/x/../messages/batches HTTP/1.1", None),
        ("POST /proxy/v1/messages/batches HTTP/1.1", None),
        ("POST /V1/messages/batches HTTP/1.1", None),
        ("PUT /v1/messages HTTP/1.1", None),
        ("post /v1/messages HTTP/1.1", None),
        ("nothing", None),
    ],
)
def test_only_what_is_counted_can_be_spent(line: str, costs: bool | None) -> None:
    assert costs_something(f"{line}\r\n\r\n".encode()) is costs


def test_the_path_of_the_address_is_part_of_the_request() -> None:
    assert costs_something(b"POST /c/v1/messages HTTP/1.1\r\n\r\n", "/c") is True
    assert costs_something(b"POST /c/v1/messages/batches HTTP/1.1\r\n\r\n", "/c") is None
