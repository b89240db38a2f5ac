"""The last words of a CLI that dies: they explain the crash, without what must not be told."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.server.connection import Connection
from tests.support.misbehaving_cli import install_misbehaving_cli

from .conftest import POLICY, Target, without_isolation

ON_STDERR = "opaque-value-on-stderr-16180"
SHAPED = "ghp_OnTheStderrOfACrash0123456789abcd"


@pytest.fixture(scope="module")
def extra_environment(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    cli = install_misbehaving_cli(Path(tmp_path_factory.mktemp("cli")))
    stderr = f"died with DB_PASSWORD={ON_STDERR} and {SHAPED}"
    return {
        "CLAUDE_CODE_PATH": str(cli),
        "DB_PASSWORD": ON_STDERR,
        "MISBEHAVE": f'{{"stderr": "{stderr}", "crash": 3}}',
    }


@pytest.fixture(scope="module")
def policy_text() -> str:
    """Without a sandbox, in which the stand-in for the CLI would not find what it needs."""
    return without_isolation(POLICY)


@pytest.mark.soak  # test_secrets.py
def test_reason_is_redacted(target: Target, alice: Connection) -> None:
    crashed = alice.create("go", waitSeconds=40)
    said = crashed.raw.model_dump_json() + target.audit_file.read_text() + target.server.log
    assert "died with" in said
    assert ON_STDERR not in said
    assert SHAPED not in said
