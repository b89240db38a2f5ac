"""`make soak`: its parts are there to be run, and one that fails neither hides nor keeps the others from running."""

import importlib.util
from pathlib import Path

import pytest

from benchmarks import soak

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("part", soak.parts(1, "2.1.325"), ids=lambda part: part.name)
def test_what_a_part_runs_exists(part: soak.Part) -> None:
    assert importlib.util.find_spec(part.arguments[0]) is not None
    for argument in part.arguments[1:]:
        assert not argument.startswith("tests/") or (ROOT / argument).exists()


def test_a_part_that_fails_is_counted_and_the_next_one_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "OUTPUT", tmp_path)
    # `python -m json.tool` fails on what is not JSON, and `python -m this` does not.
    failing = soak.Part("broken", "fails", ("json.tool", str(tmp_path / "absent.json")))
    passing = soak.Part("whole", "passes", ("this",))
    results = soak.run([failing, passing])
    assert [result.exit_code != 0 for result in results] == [True, False]
    assert "absent.json" in capsys.readouterr().out
    assert soak.table(results)[-1].startswith("1 parts passed, 1 failed")


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(["nonsense"])
    assert "no part nonsense; there are order, " in capsys.readouterr().err
