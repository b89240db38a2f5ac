"""A child that may execute some files can execute no other, and neither can what it starts."""

import asyncio
import ctypes
import os
import shutil
import sys
from pathlib import Path

import pytest

from claude_code_mcp.core.processes.child import ChildProcess, Exit
from claude_code_mcp.core.processes.limits import ChildOptions
from claude_code_mcp.core.processes.needed_files import needed_to_start

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux is asked")


def confines() -> bool:
    """Whether the kernel can be told which programs a process may execute (Landlock, in its second version)."""
    return sys.platform == "linux" and int(ctypes.CDLL(None).syscall(444, None, 0, 1)) >= 2


class Output:
    def __init__(self) -> None:
        self.text = b""
        self.ended = asyncio.Event()

    def output_received(self, data: bytes) -> None:
        self.text += data

    def output_ended(self) -> None:
        """Its end is what counts."""

    def input_closed(self) -> None:
        """It need not read its input."""

    def child_ended(self, _: Exit) -> None:
        self.ended.set()


TRIES = """
import os, subprocess, sys
for command in ([sys.executable, "-c", "print('itself', flush=True)"], ["/bin/sh", "-c", "echo shell"], [sys.argv[1]]):
    try:
        subprocess.run(command)
    except PermissionError:
        print("refused", flush=True)
os.mkdir(sys.argv[2] + "/folder")
os.rename(sys.argv[1], sys.argv[2] + "/folder/moved")
print("moved", flush=True)
"""


@linux
@pytest.mark.skipif(not confines(), reason="the kernel cannot be told which programs may run")
async def test_only_what_is_named_is_executed_and_files_can_be_moved(tmp_path: Path) -> None:
    script = tmp_path / "script"
    await asyncio.to_thread(script.write_text, "#!/bin/sh\necho script\n")
    script.chmod(0o755)
    output = Output()
    child = ChildProcess(output, "child")
    options = ChildOptions(executables=needed_to_start(sys.executable))
    argv = [options.executables[0], "-c", TRIES, str(script), str(tmp_path)]
    await child.start(argv, cwd=str(tmp_path), environment={"PATH": os.environ["PATH"]}, options=options)
    child.close_input()
    await asyncio.wait_for(output.ended.wait(), 60)
    await child.stop(1)
    assert output.text.split() == [b"itself", b"refused", b"refused", b"moved"], child.stderr


@linux
def test_files_needed_by_a_program_are_itself_and_its_loader(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    program, loader = needed_to_start(shell)
    assert program == os.path.realpath(shell)
    assert "ld" in os.path.basename(loader)
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "damaged").write_bytes(Path(shell).read_bytes()[:70])
    for other in ("script", "damaged", "nothing"):
        assert needed_to_start(str(tmp_path / other)) == ()
