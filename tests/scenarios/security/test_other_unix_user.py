"""The same walks as another Unix user: what a sandbox keeps in must not depend on who runs the server. For root the
kernel makes no user namespace and counts no processes; for others it does both."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bubblewrap import missing

USER = 54_321
ROOT = Path(__file__).parents[3]
WALKS = {
    "processes": (
        "tests/plugins/sandbox/test_bubblewrap.py",
        "tests/plugins/sandbox/test_seccomp.py",
        "tests/core/processes/test_limits.py",
    ),
    "sessions": tuple(
        f"tests/scenarios/security/test_{name}.py" for name in ("sandbox_escapes", "forged_frames", "resources")
    ),
}

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root becomes another user"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed"),
]


def command_as_other(home: Path, *arguments: str) -> list[str] | None:
    """A Python with this package that the other user can run; None if there is none."""
    user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all", "--ambient-caps=-all"]
    path = os.pathsep.join([str(ROOT / "src"), *(entry for entry in sys.path if entry.endswith("site-packages"))])
    clean = ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", f"HOME={home}", f"PYTHONPATH={path}"]
    for python in (sys.executable, "/usr/bin/python3"):
        command = [*user, *clean, "PYTHONDONTWRITEBYTECODE=1", python]
        tried = subprocess.run([*command, "-c", "import claude_code_mcp.core.service, pytest"], cwd=ROOT, check=False)
        if tried.returncode == 0:
            return [*command, *arguments]
    return None


@pytest.mark.time_limit(600)
@pytest.mark.soak  # each walk is a test of its own for the user of the run
@pytest.mark.parametrize("walk", ["processes", "sessions"])
def test_the_walks_come_to_the_same_for_another_user(tmp_path: Path, walk: str) -> None:
    home = Path("/var/tmp") / f"claude-code-mcp-test-{os.getpid()}-{walk}"
    home.mkdir(mode=0o700)
    os.chown(home, USER, USER)
    try:
        options = ("-q", "-o", f"cache_dir={home}/cache", f"--basetemp={home}/base", "-m", "")
        command = command_as_other(home, "-m", "pytest", *options, *WALKS[walk])
        if command is None:
            pytest.skip("there is no Python that another user can run")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
        assert done.returncode == 0, done.stdout[-4000:]
    finally:
        shutil.rmtree(home, ignore_errors=True)
