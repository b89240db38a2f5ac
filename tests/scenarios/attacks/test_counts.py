"""The attacks that are kept as data: from every side, each once, and each read by a test."""

import json
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1]
SHELL = TESTS / "core" / "policy" / "shell_attacks.txt"
MIN_COUNT = 8


def attacks_in(name: str) -> list[str]:
    """What a file of attacks tries, without the rows that compare with something harmless."""
    named = [row["attack"] for row in json.loads((HERE / name).read_text())]
    assert len(set(named)) == len(named), f"{name} has two of one name"
    return [attack for attack in named if not attack.startswith("no attack")]


def sides() -> dict[str, int]:
    directory = attacks_in("claude_directory.json")
    renames = [attack for attack in directory if attack.startswith("rename: ")]
    lines = [line for line in SHELL.read_text().splitlines() if line and not line.startswith("#")]
    return {
        "frames": len(attacks_in("frames.json")),
        "suggestions": len(attacks_in("suggestions.json")),
        "costs": len(attacks_in("costs.json")),
        "links": len(attacks_in("links.json")),
        "renames": len(renames),
        "files": len(directory) - len(renames),
        "environment": len(attacks_in("environment.json")),
        "shell lines": len(lines),
        "projects": len(attacks_in("project_files.json")),
        "notebooks": len(attacks_in("notebooks.json")),
        "hub": len(attacks_in("hub_files.json")),
        "fleet": len(attacks_in("documents.json")),
        "HTTP": len(attacks_in("http.json")),
        "console": len(attacks_in("console.json")),
    }


def test_there_are_attacks_from_every_side() -> None:
    counted = sides()
    assert {side: number for side, number in counted.items() if number < MIN_COUNT} == {}
    assert sum(counted.values()) - counted["shell lines"] >= 200, counted


def test_every_file_of_attacks_is_read_by_a_test() -> None:
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    for file in HERE.glob("*.json"):
        assert any(f'"{file.name}"' in text for text in texts), file.name
