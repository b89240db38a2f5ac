"""A part of the soak: sessions meet random fates, and neither a process nor a session is lost.

`make soak` runs many more, with a new seed each time.
"""

import os

import pytest

from benchmarks.common import Place
from benchmarks.trial import Fate, Trial, plan, run_trial
from claude_code_mcp.testing import Sandbox
from tests.conftest import RUN

SEED = 5
TRIALS = plan(SEED, 12)


def test_seed_covers_every_kind_of_failure() -> None:
    assert {trial.fate for trial in TRIALS} == set(Fate)


# Each fate alone, at more moments: test_interrupt.py, test_cancel.py, test_shutdown.py, test_unread_messages.py and
# test_single_writer.py.
@pytest.mark.soak
@pytest.mark.parametrize("trial", TRIALS, ids=str)
async def test_random_failures_leave_no_process_and_lose_no_session(sandbox: Sandbox, trial: Trial) -> None:
    place = Place(sandbox.root, sandbox.model_url)
    place.environment[RUN] = os.environ[RUN]
    finding = await run_trial(place, trial, os.environ[RUN])
    assert finding.problem == ""
