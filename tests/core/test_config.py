"""Settings: where they come from, which source wins, and what a mistake looks like."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from claude_code_mcp.cli.parser import run
from claude_code_mcp.core.config import (
    ALL_TOOLSETS,
    CONFIG_FILE_VARIABLE,
    TOOLSETS,
    OnDisconnect,
    Settings,
    load_settings,
    unknown_variables,
)
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.caller import ClientEnvironment
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.redaction import MARK
from claude_code_mcp.core.settings_section import description_of, variable_of
from claude_code_mcp.installed_plugins import bundled_plugins, sections_of
from claude_code_mcp.plugins.fleet.settings import FleetSettings
from claude_code_mcp.plugins.team.settings import TeamSettings
from claude_code_mcp.plugins.telemetry.settings import TelemetrySettings
from claude_code_mcp.testing.script import script, text
from tests.support.tables import every_row

FAMILIAR = {
    "CLAUDE_CODE_PATH": ("claude_path", "/opt/claude", "/opt/claude"),
    "PERMISSION_TIMEOUT_MS": ("permission_timeout_ms", "1500", 1500),
    "MAX_SESSIONS": ("max_sessions", "3", 3),
    "LOG_LEVEL": ("log_level", "debug", "debug"),
    "EVENT_BUFFER_SIZE": ("event_buffer_size", "7", 7),
    "CLAUDE_CODE_DEFAULT_CWD": ("default_cwd", "/srv/app", "/srv/app"),
    "CLAUDE_CODE_MCP_SESSION_TTL_MS": ("session_ttl_ms", "1000", 1000),
    "CLAUDE_CODE_MCP_RUNNING_SESSION_MAX_MS": ("running_session_max_ms", "2000", 2000),
    "CLAUDE_CODE_MCP_CLEANUP_INTERVAL_MS": ("cleanup_interval_ms", "3000", 3000),
}
ENGINE = {
    "CLAUDE_CODE_MCP_EVENT_BUFFER_BYTES": ("event_buffer_bytes", "4096", 4096),
    "CLAUDE_CODE_MCP_IDLE_PARK_MS": ("idle_park_ms", "4000", 4000),
    "CLAUDE_CODE_MCP_STALL_MS": ("stall_ms", "5000", 5000),
    "CLAUDE_CODE_MCP_START_TIMEOUT_MS": ("start_timeout_ms", "6000", 6000),
    "CLAUDE_CODE_MCP_STOP_TIMEOUT_MS": ("stop_timeout_ms", "7000", 7000),
    "CLAUDE_CODE_MCP_SPAWN_LIMIT": ("spawn_limit", "8", 8),
    "CLAUDE_CODE_MCP_STATE_DIR": ("state_dir", "/var/state", Path("/var/state")),
}
VARIABLES = [(variable, *rest) for variable, rest in {**FAMILIAR, **ENGINE}.items()]


def config_file(directory: Path, text: str) -> Path:
    path = directory / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(*arguments: object, **given: object) -> str:
    with pytest.raises(InvalidArgument) as caught:
        load_settings(*arguments, **given)  # type: ignore[arg-type]
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_defaults_are_the_documented_ones() -> None:
    settings = load_settings({})
    assert settings.claude_path is None
    assert settings.permission_timeout_ms == 300_000
    assert settings.max_sessions == 10
    assert settings.log_level == "info"
    assert settings.event_buffer_size == 500
    assert settings.session_ttl_ms == 1_800_000
    assert settings.running_session_max_ms == 14_400_000
    assert settings.cleanup_interval_ms == 60_000


@every_row(("variable", "field", "text", "value"), VARIABLES)
def test_a_variable_sets_its_field(variable: str, field: str, text: str, value: object) -> None:
    assert getattr(load_settings({variable: text}), field) == value
    assert variable_of(field, Settings) == variable


@every_row(("variable", "field", "text", "value"), VARIABLES)
def test_the_file_takes_the_name_of_the_variable_or_of_the_field(
    variable: str, field: str, text: str, value: object, tmp_path: Path
) -> None:
    for name in (variable, field):
        assert getattr(load_settings({}, config_file(tmp_path, f'{name} = "{text}"')), field) == value


@every_row("field", sorted(Settings.model_fields))
def test_every_field_is_documented_and_has_a_variable_of_its_own(field: str) -> None:
    assert description_of(field, Settings).endswith(".")
    assert [variable_of(one, Settings) for one in Settings.model_fields].count(variable_of(field, Settings)) == 1


@every_row("field", [field for _, field, *_ in VARIABLES if field.endswith("_ms")])
def test_every_time_of_the_engine_can_be_had_in_seconds(field: str) -> None:
    assert getattr(load_settings({variable_of(field, Settings): "1500"}), field.removesuffix("_ms")) == 1.5


def test_an_argument_beats_a_variable_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = config_file(tmp_path, "MAX_SESSIONS = 2\nLOG_LEVEL = 'error'")
    environment = {"MAX_SESSIONS": "3"}
    assert load_settings({}).max_sessions == 10
    assert load_settings({}, file).max_sessions == 2
    assert load_settings(environment, file).max_sessions == 3
    assert load_settings(environment, file, max_sessions=4).max_sessions == 4
    assert load_settings(environment, file, max_sessions=4).log_level == "error"


def test_a_variable_names_the_file_and_an_argument_beats_it(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    named = config_file(tmp_path, "MAX_SESSIONS = 2")
    given = config_file(tmp_path / "other", "MAX_SESSIONS = 3")
    environment = {CONFIG_FILE_VARIABLE: str(named)}
    assert load_settings(environment).max_sessions == 2
    assert load_settings(environment, given).max_sessions == 3


def test_without_an_argument_the_environment_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_SESSIONS", "6")
    assert load_settings().max_sessions == 6


def test_an_empty_variable_is_an_unset_one() -> None:
    unset = load_settings({"MAX_SESSIONS": "", "CLAUDE_CODE_PATH": ""})
    assert unset.model_dump() == load_settings({}).model_dump()


def test_variables_of_others_do_no_harm() -> None:
    settings = load_settings({"MAX_SESSION": "nonsense", "PATH": "/bin"})
    assert settings.model_dump() == load_settings({}).model_dump()


def test_levels_are_read_in_any_case() -> None:
    assert load_settings({"LOG_LEVEL": "WARN"}).log_level == "warn"


def test_a_tilde_means_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config_file(tmp_path, "CLAUDE_CODE_MCP_STATE_DIR = '~/state'")
    assert load_settings({CONFIG_FILE_VARIABLE: "~/config.toml"}).state_dir == tmp_path / "state"


@pytest.mark.soak  # tests/server/tools/test_query_defaults.py
async def test_sessions_that_name_no_directory_work_in_the_default_one(
    start_service: Callable[..., Any], tmp_path: Path
) -> None:
    default, other = tmp_path / "default", tmp_path / "other"
    default.mkdir()
    other.mkdir()
    service = await start_service(default_cwd=str(default))
    session = (await service.create(script("hello", text("hi")))).session
    named = (await service.create(script("hello", text("hi")), SessionOptions(cwd=str(other)))).session
    assert (session.cwd, named.cwd) == (str(default), str(other))


@every_row(
    ("variable", "text"),
    [(variable, text) for variable, field, *_ in VARIABLES if field.endswith("_ms") for text in ("0", "-1", "soon")]
    + [("MAX_SESSIONS", text) for text in ("0", "-3", "ten", "1.5", "1e3")]
    + [("EVENT_BUFFER_SIZE", "0"), ("CLAUDE_CODE_MCP_SPAWN_LIMIT", "0"), ("LOG_LEVEL", "loud")],
)
def test_a_bad_value_is_one_line_that_names_variable_and_value(variable: str, text: str) -> None:
    assert refusal({variable: text}).startswith(f"{variable}={text!r} is not valid: ")


def test_a_bad_value_in_the_file_is_named_by_its_variable(tmp_path: Path) -> None:
    message = refusal({}, config_file(tmp_path, "max_sessions = [1]"))
    assert message.startswith("MAX_SESSIONS=[1] ")


def test_a_bad_argument_is_named_too() -> None:
    assert refusal({}, max_sessions="many").startswith("MAX_SESSIONS='many' ")


def test_a_secret_is_never_repeated(tmp_path: Path) -> None:
    message = refusal({}, config_file(tmp_path, "CLAUDE_CODE_MCP_TOKEN = 987654321"))
    assert message.startswith("CLAUDE_CODE_MCP_TOKEN ")
    assert "987654321" not in message
    assert "hush" not in repr(load_settings({"CLAUDE_CODE_MCP_TOKEN": "hush"}))


@every_row("text", ["MAX_SESSION = 1", "[claude]\npath = 'x'"])
def test_an_unknown_name_in_the_file_is_refused(text: str, tmp_path: Path) -> None:
    settings = load_settings({}, config_file(tmp_path, text))
    with pytest.raises(InvalidArgument, match="There is no setting named"):
        settings.check_sections(sections_of(bundled_plugins()))


def test_the_file_may_have_settings_of_plug_ins(tmp_path: Path) -> None:
    file = config_file(tmp_path, 'MAX_SESSIONS = 2\nfleet_nats = "tls://a"')
    settings = load_settings({}, file)
    settings.check_sections([FleetSettings])
    assert settings.section(FleetSettings).fleet_nats == "tls://a"
    with pytest.raises(InvalidArgument, match="fleet_nats"):
        load_settings({}, file).check_sections([])


def test_a_wrong_setting_of_a_plug_in_is_named() -> None:
    settings = load_settings({"CLAUDE_CODE_MCP_FLEET_WAIT_MS": "-1"})
    with pytest.raises(InvalidArgument, match="CLAUDE_CODE_MCP_FLEET_WAIT_MS='-1' is not valid"):
        settings.section(FleetSettings)


@pytest.mark.parametrize(("value", "bound"), [("4999", "than or equal to 5000"), ("300001", "than or equal to 300000")])
def test_the_length_of_a_fleets_leases_has_bounds(value: str, bound: str) -> None:
    settings = load_settings({"CLAUDE_CODE_MCP_FLEET_LEASE_MS": value})
    with pytest.raises(InvalidArgument, match=f"CLAUDE_CODE_MCP_FLEET_LEASE_MS='{value}' is not valid: .*{bound}"):
        settings.section(FleetSettings)


def test_an_unknown_argument_is_refused() -> None:
    assert "'speed'" in refusal({}, speed=11)


def test_one_setting_under_two_names_is_refused(tmp_path: Path) -> None:
    message = refusal({}, config_file(tmp_path, "max_sessions = 1\nMAX_SESSIONS = 2"))
    assert "MAX_SESSIONS" in message
    assert "max_sessions" in message


@every_row("content", [b"MAX_SESSIONS =", b"\xff\xfe", b"A = 1\nA = 2"])
def test_a_file_that_is_no_toml_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    assert refusal({}, path).startswith(f"The configuration file {path} cannot be read")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    assert str(path) in refusal({CONFIG_FILE_VARIABLE: str(path)})


def test_settings_are_immutable() -> None:
    settings = load_settings({})
    with pytest.raises(ValueError, match="frozen"):
        setattr(settings, "max_sessions", 5)  # noqa: B010 - the type checker forbids the plain form


def test_the_help_of_serve_names_what_the_settings_take(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["serve", "--help"])
    help_text = "".join(capsys.readouterr().out.split())
    assert all(f"`{toolset}`" in help_text for toolset in ALL_TOOLSETS)
    assert f"Default:{','.join(TOOLSETS)}." in help_text
    assert f"{{{','.join(get_args(OnDisconnect))}}}" in help_text
    for field in ("http_token", "http_tokens_file"):
        assert variable_of(field, Settings) in help_text


def test_the_description_of_a_setting_names_all_its_choices() -> None:
    for field, choices in (("toolsets", ALL_TOOLSETS), ("on_disconnect", get_args(OnDisconnect))):
        described = description_of(field, Settings)
        assert all(f"`{choice}`" in described for choice in choices)


def test_a_misspelled_variable_comes_with_the_one_that_was_probably_meant() -> None:
    environment = {
        "CLAUDE_CODE_MCP_STATEDIR": "/srv",
        "CLAUDE_CODE_MCP_QQQ": "1",
        "CLAUDE_CODE_MCP_STATE_DIR": "/srv",
        CONFIG_FILE_VARIABLE: "x",
        "CLAUDE_CODE_MCP_DEPTH": "1",
        "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT": "1",  # of Claude Code itself
        "PATH": "/bin",
    }
    assert unknown_variables(environment) == {
        "CLAUDE_CODE_MCP_QQQ": None,
        "CLAUDE_CODE_MCP_STATEDIR": "CLAUDE_CODE_MCP_STATE_DIR",
    }


async def test_only_secret_settings_are_redacted_whatever_a_variable_is_called(
    start_service: Callable[..., Any], environment: dict[str, str], tmp_path: Path
) -> None:
    harmless = {"OAUTH_CLAIM": "preferred_username", "OAUTH_ISSUER": "https://login.example.org"}
    secret = {"PROXY_SECRET": "opaque-value-of-the-proxy", "AUDIT_TOKEN": "opaque-value-of-the-trail"}
    variables = {f"CLAUDE_CODE_MCP_{name}": value for name, value in {**harmless, **secret}.items()}
    sinks = ("https://user:opaque-password-of-a-sink@audit.example.org",)
    service = await start_service(
        {**variables, "OTHER_OAUTH": "opaque-value-of-another"},
        sections=[TeamSettings(), TelemetrySettings(audit_sinks=sinks)],
        metrics_token="opaque-value-of-metrics",
    )
    # As a client has them that is served from its own environment.
    with service.connected(ClientEnvironment(str(tmp_path), {**environment, **variables}, "one")):
        text = service.redaction.text
        assert [text(value) for value in harmless.values()] == [*harmless.values()]
    opaque = [*secret.values(), "opaque-value-of-metrics", "opaque-password-of-a-sink", "opaque-value-of-another"]
    assert {text(value) for value in opaque} == {MARK}
