"""The page's types of what the server tells are those that the server's models make."""

import importlib.util
from pathlib import Path

BUILD = Path(__file__).parents[3] / "web" / "build_types.py"


def test_the_types_of_the_page_are_what_the_models_make() -> None:
    spec = importlib.util.spec_from_file_location("build_types", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.FILE.read_text(encoding="utf-8") == module.typescript(), "run `python web/build_types.py`"
