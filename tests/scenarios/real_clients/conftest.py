"""Fixtures of the tests with foreign clients: the packages, and our server on both transports."""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from tests.conftest import RUN
from tests.support.npm import Unavailable

from .packages import Packages, install
from .sdk_client import Kind, SdkClient, sdk_client
from .serving import Served, serve_http

INSTALLING = pytest.mark.time_limit(300)
QUICK = {("legacy", "stdio"), ("modern", "http"), ("auto", "stdio")}
"""The eras and transports that `make test` has clients of other people for; `make soak` has every pair."""
ONE_VERSION = {
    "test_a_session_is_run_through_the_queue_and_a_refusal_is_a_result_with_a_code": "v1",
    "test_a_person_allows_declines_and_chooses_in_the_clients_own_form": "v2",
}
"""Long ones, of which `make test` has one version of the SDK each."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a run may have to wait for the packages."""
    for item in items:
        if __package__ in item.nodeid.replace("/", "."):
            item.add_marker(INSTALLING)
            if _is_soak(getattr(item, "callspec", None), getattr(item, "originalname", "")):
                item.add_marker(pytest.mark.soak)


def _is_soak(case: Any, test: str) -> bool:
    """Whether a case is one more pair of an era and a transport, or another SDK for a long test. The second SDK speaks
    for the new era alone."""
    if case is None or not {"kind", "inspector"} & case.params.keys():
        return False
    kind = case.params.get("kind")
    if kind == Kind("v2", "legacy"):
        return True
    if kind is not None and ONE_VERSION.get(test, kind.sdk) != kind.sdk:
        return True
    era = case.params["inspector"] if kind is None else kind.era
    return (era, case.params["served"]) not in QUICK


@pytest.fixture(scope="session")
def packages() -> Packages:
    try:
        return install()
    except Unavailable as error:
        pytest.skip(f"foreign clients cannot run here: {error}")


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> Sandbox:
    """The home of servers that several tests share."""
    return Sandbox(tmp_path_factory.mktemp("served"), model.url)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory, common: Sandbox) -> Iterator[Served]:
    """A server on loopback that wants a token, started above the directories of all tests: callers may work below."""
    place = tmp_path_factory.getbasetemp()
    with serve_http(place, common.environment(**{RUN: os.environ[RUN]}), secrets.token_urlsafe(32)) as served:
        yield served


@pytest.fixture(params=["stdio", "http"])
def served(request: pytest.FixtureRequest) -> Served:
    """The server on either transport."""
    return request.getfixturevalue("address") if request.param == "http" else Served()


@pytest.fixture(params=[Kind("v1", "legacy"), Kind("v2", "legacy"), Kind("v2", "modern")], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


StartClient = Callable[..., SdkClient]


@pytest.fixture
def start_client(packages: Packages, kind: Kind, served: Served, environment: dict[str, str]) -> Iterator[StartClient]:
    """Starts clients of the kind, connected to the server; `answers` are those of the person behind it."""
    with ExitStack() as stack:

        def start(answers: Sequence[dict[str, Any]] = ()) -> SdkClient:
            client = stack.enter_context(sdk_client(packages, kind, served, environment, answers))
            client.connect()
            return client

        yield start
