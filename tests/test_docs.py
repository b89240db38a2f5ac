"""What the documentation promises is so."""

import re
from pathlib import Path

import pytest

from claude_code_mcp.commands.config import settings_page

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def test_the_settings_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == settings_page()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`?make ([a-z-]+)", page.read_text(encoding="utf-8")))
    described = {target for target in named if re.search(rf"^{target}:", makefile, re.MULTILINE)}
    assert named - described <= {"sure"}


def test_python_in_the_readme_compiles() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        indented = "\n".join(f"    {line}" for line in block.splitlines())
        compile(f"async def snippet():\n{indented}\n", "README.md", "exec")
