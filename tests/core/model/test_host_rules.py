"""Lists of hosts: what each entry covers, in whatever spelling a session asks for it."""

from ipaddress import ip_address

import pytest

from claude_code_mcp.core.model.network import host_name, may_lead_to, parse_host_rule, rule_for, split_port

COVERED = [
    ("api.github.com", "api.github.com", 443),
    ("api.github.com", "api.github.com", 80),
    ("api.github.com", "API.GitHub.COM", 443),
    ("api.github.com", "api.github.com.", 443),
    ("API.GITHUB.COM.", "api.github.com", 443),
    ("*.example.org", "a.example.org", 443),
    ("*.example.org", "a.b.example.org", 443),
    ("bücher.example", "xn--bcher-kva.example", 443),
    ("xn--bcher-kva.example", "BÜCHER.example", 443),
    ("example.org:8443", "example.org", 8443),
    ("127.0.0.1:8080", "127.0.0.1", 8080),
    ("[::1]:8080", "::1", 8080),
    ("[::1]:8080", "[0:0:0:0:0:0:0:1]", 8080),
    ("::1", "::1", 80),
    ("localhost:9000", "LOCALHOST", 9000),
]
NOT_COVERED = [
    ("api.github.com", "github.com", 443),
    ("api.github.com", "evil-api.github.com", 443),
    ("api.github.com", "api.github.com.evil.example", 443),
    ("api.github.com", "api.github.com", 22),
    ("*.example.org", "example.org", 443),
    ("*.example.org", "evilexample.org", 443),
    ("*.example.org", "a.example.org.evil.example", 443),
    ("*.example.org", "a.example.org", 8443),
    ("example.org:8443", "example.org", 443),
    ("127.0.0.1:8080", "127.0.0.1", 80),
    ("127.0.0.1:8080", "localhost", 8080),
    ("localhost:9000", "127.0.0.1", 9000),
    ("localhost:9000", "a.localhost", 9000),
]


@pytest.mark.parametrize(("entry", "host", "port"), COVERED)
def test_paths_covered_by_a_rule(entry: str, host: str, port: int) -> None:
    assert rule_for([parse_host_rule(entry)], host_name(host), port) is not None


@pytest.mark.parametrize(("entry", "host", "port"), NOT_COVERED)
def test_paths_not_covered_by_a_rule(entry: str, host: str, port: int) -> None:
    assert rule_for([parse_host_rule(entry)], host_name(host), port) is None


@pytest.mark.parametrize(
    "entry",
    [
        "", "*", "*.", "*.*.org", "a.*.org", "*example.org", "https://example.org", "example.org/path", "a b", "a_b c",
        "example.org:0", "example.org:65536", "example.org:x", "example.org:", "user@example.org", "*.127.0.0.1",
        "*.[::1]", "127.1", "0x7f000001", "2130706433", "1.2.3.4.5", "fe80::1%eth0", "a..b", "-a.org", "a-.org",
        "a" * 64 + ".org", ".".join(["a"] * 200), "\u2024.org", "a\0b", "a\n.org", "a\r\nHost: b",
    ],
)  # fmt: skip
def test_invalid_entry_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"port|host name|no subdomains"):
        parse_host_rule(entry)


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a:1", ("a", 1)), ("[::1]:2", ("[::1]", 2)), ("::1", ("::1", None)), ("[::1]", ("[::1]", None))],
)
def test_port_is_removed(text: str, parts: tuple[str, int | None]) -> None:
    assert split_port(text) == parts


@pytest.mark.parametrize(
    ("entries", "name", "address", "port", "may"),
    [
        (["localhost:9"], "localhost:9", "127.0.0.1", 9, True),
        (["localhost:9"], "localhost:9", "::1", 9, True),
        (["localhost:9"], "localhost:9", "10.0.0.1", 9, False),
        (["git.corp"], "git.corp", "10.0.0.5", 443, False),
        (["git.corp", "10.0.0.5"], "git.corp", "10.0.0.5", 443, True),
        (["git.corp", "10.0.0.5:80"], "git.corp", "10.0.0.5", 443, False),
        (["git.corp", "10.0.0.5"], "git.corp", "10.0.0.6", 443, False),
        (["*.localhost"], "*.localhost", "127.0.0.1", 443, False),
    ],
)
def test_a_name_leads_to_a_private_address_only_if_the_list_names_it(
    entries: list[str], name: str, address: str, port: int, may: bool
) -> None:
    rules = [parse_host_rule(entry) for entry in entries]
    assert may_lead_to(rules, parse_host_rule(name), ip_address(address), port) is may
