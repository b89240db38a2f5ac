import pytest

from tests.support import npm

from . import page_text
from .page_text import Draw


@pytest.fixture(scope="package")
def draw() -> Draw:
    try:
        page_text.node_command()
    except npm.Unavailable as error:
        pytest.skip(f"the page's sources cannot be built here: {error}")
    return page_text.draw
