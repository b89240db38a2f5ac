"""One server for all clients of a user: started once, shared by all, and survived by every client."""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.core.sessions.support import ENDLESS
from tests.core.sessions.usage_limit_support import SUBSCRIPTION, limited
from tests.plugins.console.console_client import Browser
from tests.startup.greeting.client import INITIALIZED, enveloped, initialize, request
from tests.support.waiting import HANG_SECONDS, until

from .support import NO_SPARES, SharedPlace, call, next_answer, opened


def test_clients_share_one_server_and_its_sessions(shared: SharedPlace, sandbox: Sandbox) -> None:
    for name in NO_SPARES:  # as users have it
        del shared.environment[name]
    with opened(shared.real_client()) as one, opened(shared.real_client()) as other:
        prompt = script("Say it.", "Said.")
        made = call(one, 1, "claude_create_session", prompt=prompt, workingDirectory=str(sandbox.project))
        seen = call(other, 1, "claude_get_status", sessionId=made["sessionId"], waitSeconds=50)
        assert (seen["status"], seen["result"]) == ("completed", "Said.")
        [server] = shared.status()
        assert (len(server["clients"]), server["sessions"]) == (2, 1)
        assert one.end()[0] == 0
        seen = call(other, 2, "claude_send_message", sessionId=made["sessionId"], message=prompt, waitSeconds=50)
        assert seen["status"] == "completed"
    assert shared.command("shared", "stop").returncode == 0
    assert shared.command("shared", "status").returncode == 5


def test_both_eras_are_served_on_the_socket(shared: SharedPlace) -> None:
    with shared.client(CLAUDE_CODE_MCP_GREETING="off") as modern:
        assert "result" in modern.ask(enveloped("server/discover", 0))
        assert "result" in modern.ask(enveloped("tools/call", 1, name="claude_list_sessions", arguments={}))
        shared.kill_server()
        assert "result" in modern.ask(enveloped("tools/call", 2, name="claude_list_sessions", arguments={}))
        with opened(shared.client()) as legacy:
            assert call(legacy, 1, "claude_list_sessions") == {"sessions": []}
        assert len(shared.status()) == 1


def test_a_client_that_sends_everything_at_once_and_leaves_gets_every_answer(shared: SharedPlace) -> None:
    with shared.client() as client:
        listing = request("tools/call", 3, name="claude_list_sessions", arguments={})
        client.send(initialize(), INITIALIZED, request("tools/list", 1), request("ping", 2), listing)
        code, said, _ = client.end()
        assert code == 0
        answers = {answer["id"]: answer["result"] for answer in said}
        assert answers.keys() == {0, 1, 2, 3}
        assert answers[3]["structuredContent"] == {"sessions": []}


def test_lines_of_many_megabytes_pass_in_both_directions(shared: SharedPlace) -> None:
    with opened(shared.client()) as client:
        filler = "x" * (8 << 20)
        with ThreadPoolExecutor(1) as writing:
            sent = writing.submit(client.send, request("tools/call", 1, name="none", arguments={"text": filler}))
            assert client.read()["error"]["message"] == "Unknown tool: none"
            sent.result()
        reverse = {"method": "tools/call", "params": {"name": filler}, "jsonrpc": "2.0", "id": "last"}
        client.send(reverse)
        assert client.read()["id"] == "last"
        assert call(client, 2, "claude_list_sessions") == {"sessions": []}


def test_clients_that_start_at_once_have_one_server(shared: SharedPlace) -> None:
    clients = [shared.real_client() for _ in range(8)]
    try:
        for client in clients:
            client.send(initialize(), INITIALIZED, request("tools/call", 1, name="claude_list_sessions", arguments={}))
        for client in clients:
            assert next_answer(client, 1)["result"]["structuredContent"] == {"sessions": []}
        [server] = shared.status()
        assert len(server["clients"]) == 8
        assert {server["pid"]} == shared.locked_pids()
        assert shared.log().count("serves the clients of this user") == 1
    finally:
        for client in clients:
            client.__exit__()


def test_shared_server_is_detached_and_holds_no_secret(shared: SharedPlace) -> None:
    with opened(shared.real_client(ANTHROPIC_API_KEY="sk-ant-secret", SOME_TOKEN="hidden")) as client:
        call(client, 1, "claude_list_sessions")
        [server] = shared.status()
        process = psutil.Process(server["pid"])
        assert client.process.pid not in [parent.pid for parent in process.parents()]
        assert os.getsid(process.pid) != os.getsid(client.process.pid)
        held = json.dumps([process.environ(), process.cmdline()])
        assert "sk-ant-secret" not in held
        assert "hidden" not in held
        own = ("/claude-code-mcp/index/", "/claude-code-mcp/state.sqlite3", "/claude-code-mcp/servers/")
        files = [file.path for file in process.open_files() if not any(name in file.path for name in own)]
        assert not [path for path in files if not path.startswith((str(shared.runtime), "/proc/"))]
    assert "sk-ant-secret" not in "".join(file.read_text() for file in shared.runtime.iterdir() if file.is_file())


def test_settings_that_differ_have_a_server_of_their_own(shared: SharedPlace) -> None:
    """A client that was given stricter settings must never be served under others."""
    strict = {"CLAUDE_CODE_MCP_TOOLSETS": "sessions", "MAX_SESSIONS": "1"}
    with opened(shared.client()) as usual, opened(shared.client(**strict)) as restricted:
        call(usual, 1, "claude_list_sessions")
        call(restricted, 1, "claude_list_sessions")
        assert len(shared.status()) == 2
    assert shared.command("shared", "stop", "--all").returncode == 0


def test_client_reports_unusable_settings(shared: SharedPlace) -> None:
    with shared.client(MAX_SESSIONS="many") as client:
        opened(client)
        answer = client.ask(request("tools/call", 1, name="claude_list_sessions", arguments={}))
        assert "MAX_SESSIONS" in answer["result"]["content"][0]["text"]
        said = client.end()[2]
        assert "serving in this process, without the shared server: " in said
        assert ".." not in said
        assert ".;" not in said


def test_uninstall_refuses_while_a_client_is_connected_and_then_ends_the_server(shared: SharedPlace) -> None:
    with opened(shared.client()) as client:
        call(client, 1, "claude_list_sessions")
        refused = shared.command("uninstall", "--yes")
        assert refused.returncode == 2
        assert f"Quit the clients that use the shared server first: pid {client.process.pid} in" in refused.stderr
        assert len(shared.status()) == 1
    until(lambda: not shared.status()[0]["clients"])
    removed = shared.command("uninstall", "--yes")
    assert "To remove the package" in removed.stdout, removed.stderr
    assert shared.status() == []


def test_unused_shared_server_exits(shared: SharedPlace, sandbox: Sandbox) -> None:
    idle = {"CLAUDE_CODE_MCP_SHARED_IDLE_MS": "150"}
    with opened(shared.client(**idle)) as client:
        gate = sandbox.project / "go on"
        waits = tool("Bash", command=f"until [ -e '{gate}' ]; do sleep 0.05; done")
        made = call(
            client,
            1,
            "claude_create_session",
            prompt=script("Wait.", waits, "Done."),
            workingDirectory=str(sandbox.project),
            allowedTools=["Bash"],
        )
        assert made["sessionId"]
        assert client.end()[0] == 0
    gate.touch()
    until(lambda: not shared.locked_pids())
    assert not list(shared.runtime.glob("*.sock"))


@pytest.mark.soak
def test_it_stays_for_a_session_that_waits_for_a_usage_limit(
    shared: SharedPlace, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    prompt = script("Work.", limited(time.time() + 5, times=1, then="Done."))
    with opened(shared.real_client(CLAUDE_CODE_MCP_SHARED_IDLE_MS="100", **SUBSCRIPTION)) as client:
        place = {"workingDirectory": str(sandbox.project), "onLimit": "wait"}
        made = call(client, 1, "claude_create_session", prompt=prompt, waitSeconds=50, **place)
        assert made["status"] == "limit_reached"
        assert client.end()[0] == 0
    until(lambda: [request.status for request in model.requests if request.prompt == prompt] == [429, 200])
    until(lambda: not shared.locked_pids())


def test_it_stays_while_a_browser_is_signed_in_and_ends_after_the_sign_out(shared: SharedPlace) -> None:
    idle = {"CLAUDE_CODE_MCP_SHARED_IDLE_MS": "100"}
    with opened(shared.client(**idle)) as client:
        call(client, 1, "claude_list_sessions")
        given = shared.command("web", "--json", **idle)
        assert given.returncode == 0, given.stderr
        link = json.loads(given.stdout)
        browser = Browser(link["address"].rstrip("/"))
        assert browser.sign_in(ticket=link["url"].partition("#ticket=")[2]).status == 200
    for _ in range(4):
        time.sleep(0.25)  # longer than it would stay for nobody
        assert browser.get("/api/me").status == 200
    assert browser.post("/api/sign-out", {}).status == 200
    until(lambda: not shared.locked_pids())


def test_stopped_server_is_started_again_for_a_client(shared: SharedPlace) -> None:
    with opened(shared.client()) as client:
        call(client, 1, "claude_list_sessions")
        assert shared.command("shared", "stop").returncode == 0
        assert shared.command("shared", "stop").returncode == 1
        assert shared.status() == []
        assert call(client, 2, "claude_list_sessions") == {"sessions": []}
        [first] = shared.status()
        assert shared.command("shared", "restart").returncode == 0
        assert call(client, 3, "claude_list_sessions") == {"sessions": []}
        [second] = shared.status()
        assert first["pid"] != second["pid"]


def test_a_call_in_flight_is_answered_when_the_server_is_killed(shared: SharedPlace, sandbox: Sandbox) -> None:
    with opened(shared.client()) as client:
        made = call(
            client,
            1,
            "claude_create_session",
            prompt=script("Work.", tool("Bash", command=ENDLESS)),
            workingDirectory=str(sandbox.project),
            allowedTools=["Bash"],
        )
        session = made["sessionId"]
        waiting = {"sessionId": session, "waitSeconds": 50}
        client.send(request("tools/call", 2, name="claude_get_status", arguments=waiting))
        joins = {"sessionId": session, "message": "joins", "waitSeconds": 50}
        client.send(request("tools/call", 3, name="claude_send_message", arguments=joins))
        until(lambda: bool(shared.status()[0]["clients"][0]["requests"] == 2))
        shared.kill_server()
        answers = client.answers(2)
        assert "claude_list_sessions" in answers[3]["error"]["message"]
        assert answers[2]["result"]["structuredContent"]["sessionId"] == session
        again = call(
            client, 4, "claude_send_message", sessionId=session, message=script("And?", text("Back.")), waitSeconds=50
        )
        assert (again["status"], again["result"]) == ("completed", "Back.")
        listed = call(client, 5, "claude_list_sessions")["sessions"]
        assert [one["sessionId"] for one in listed] == [session]


@pytest.mark.soak  # test_relay.py, without a server
def test_a_question_is_withdrawn_with_its_server_and_asked_by_the_next(shared: SharedPlace, sandbox: Sandbox) -> None:
    def asking() -> str:
        return script("Write.", tool("Write", file_path=str(sandbox.project / "note"), content="x"), "Written.")

    with opened(shared.client()) as client:
        made = call(client, 1, "claude_create_session", prompt=asking(), workingDirectory=str(sandbox.project))
        question = client.read()
        assert question["method"] == "elicitation/create"
        shared.kill_server()
        withdrawn = client.read()
        assert (withdrawn["method"], withdrawn["params"]["requestId"]) == ("notifications/cancelled", question["id"])
        again = {"sessionId": made["sessionId"], "message": asking()}
        client.send(request("tools/call", 2, name="claude_send_message", arguments=again))
        said = [client.read() for _ in range(2)]
        (second,) = [one for one in said if one.get("method") == "elicitation/create"]
        assert second["id"] != question["id"]
        allow = {"action": "accept", "content": {"decision": "Allow once"}}
        deny = {"action": "decline"}
        # The late answer to the first question must not be taken for one to the second.
        client.send({"jsonrpc": "2.0", "id": question["id"], "result": deny})
        client.send({"jsonrpc": "2.0", "id": second["id"], "result": allow})
        done = call(client, 3, "claude_get_status", sessionId=made["sessionId"], waitSeconds=50)
        assert (done["status"], done["result"]) == ("completed", "Written.")


@pytest.mark.soak
def test_a_server_that_is_killed_while_it_starts_is_started_again(shared: SharedPlace) -> None:
    with shared.real_client() as client:
        client.send(initialize(), INITIALIZED)
        assert client.read()["id"] == 0
        for number in range(1, 4):
            client.send(request("tools/call", number, name="claude_list_sessions", arguments={}))
            shared.kill_server()
        assert set(client.answers(3)) == {1, 2, 3}


def test_without_a_private_directory_the_client_serves_itself(shared: SharedPlace, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    (tmp_path / "file").touch()
    for directory in (open_to_all / "inner", tmp_path / "file" / "below"):
        with opened(shared.client(CLAUDE_CODE_MCP_RUNTIME_DIR=str(directory))) as client:
            assert call(client, 1, "claude_list_sessions") == {"sessions": []}
            assert "serving in this process" in client.end()[2]


def test_nested_client_joins_but_does_not_start_the_shared_server(shared: SharedPlace) -> None:
    nested = {"CLAUDE_CODE_MCP_DEPTH": "1", "CLAUDE_CODE_MCP_MAX_DEPTH": "1"}
    with opened(shared.client(**nested)) as client:
        assert call(client, 1, "claude_list_sessions") == {"sessions": []}
        assert "end with it" in client.end()[2]
    assert shared.status() == []
    with opened(shared.client(CLAUDE_CODE_MCP_MAX_DEPTH="1")) as outer, opened(shared.client(**nested)) as inner:
        call(outer, 1, "claude_list_sessions")
        call(inner, 1, "claude_list_sessions")
        assert len(shared.status()[0]["clients"]) == 2


def test_the_client_may_close_its_end_at_any_time(shared: SharedPlace) -> None:
    with opened(shared.client()) as keeper:
        call(keeper, 1, "claude_list_sessions")
        with opened(shared.client()) as leaver:
            leaver.send(request("tools/call", 1, name="claude_list_sessions", arguments={}))
            leaver.process.kill()
        with opened(shared.client()) as deaf:
            assert deaf.process.stdout is not None
            deaf.process.stdout.close()
            assert deaf.process.wait(HANG_SECONDS) == 0
        assert call(keeper, 2, "claude_list_sessions") == {"sessions": []}
        until(lambda: len(shared.status()[0]["clients"]) == 1)


def test_the_log_is_printed(shared: SharedPlace) -> None:
    assert shared.command("shared", "start").returncode == 0
    printed = shared.command("shared", "logs")
    assert "serves the clients of this user" in printed.stdout
    assert oct(next(shared.runtime.glob("*.log")).stat().st_mode & 0o777) == "0o600"
    again = shared.command("shared", "start", "--json")
    assert json.loads(again.stdout)["pid"] == shared.status()[0]["pid"]


ANOTHER_USER = 65534
KNOCK = """
import os, socket, sys
os.setegid(int(sys.argv[2]))
os.seteuid(int(sys.argv[2]))
client = socket.socket(socket.AF_UNIX)
client.settimeout(60)
client.connect(sys.argv[1])
try:
    client.sendall(b"{}\\n")
    got = client.recv(100)
except ConnectionError:
    got = b""
sys.stdout.write(repr(got) if got else "nothing")
"""
LISTEN = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.seteuid(int(sys.argv[2]))
server.listen()
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_another_user_is_served_nothing_even_if_the_directory_were_open(shared: SharedPlace) -> None:
    with tempfile.TemporaryDirectory() as above:
        runtime = Path(above) / "run"
        elsewhere = {"CLAUDE_CODE_MCP_RUNTIME_DIR": str(runtime)}
        try:
            assert shared.command("shared", "start", **elsewhere).returncode == 0
            (socket_path,) = runtime.glob("*.sock")
            assert "PermissionError" in knock(socket_path)
            for directory in (Path(above), runtime):
                directory.chmod(0o711)
            socket_path.chmod(0o666)
            assert knock(socket_path) == "nothing"
        finally:
            runtime.chmod(0o700)
            assert shared.command("shared", "stop", **elsewhere).returncode == 0


def knock(socket_path: Path) -> str:
    """What another user gets at a socket."""
    command = [sys.executable, "-S", "-c", KNOCK, str(socket_path), str(ANOTHER_USER)]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    return done.stdout or done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_a_server_of_another_user_gets_nothing_of_a_client(shared: SharedPlace) -> None:
    with opened(shared.client()) as client:
        call(client, 1, "claude_list_sessions")
    (socket_path,) = shared.runtime.glob("*.sock")
    assert shared.command("shared", "stop").returncode == 0
    listen = [sys.executable, "-S", "-c", LISTEN, str(socket_path), str(ANOTHER_USER)]
    with subprocess.Popen(listen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as impostor:
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == "listening\n"
        with opened(shared.client()) as client:
            assert call(client, 1, "claude_list_sessions") == {"sessions": []}
            assert "belongs to another user" in client.end()[2]
        impostor.communicate()
    socket_path.unlink()
