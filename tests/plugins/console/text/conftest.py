from collections.abc import Iterator

import pytest

from tests.support import npm

from .page_text import Draw, drawing, node_command


@pytest.fixture(scope="package")
def draw() -> Iterator[Draw]:
    try:
        command = node_command()
    except npm.Unavailable as error:
        pytest.skip(f"the page's sources cannot be built here: {error}")
    with drawing(command) as draw:
        yield draw
