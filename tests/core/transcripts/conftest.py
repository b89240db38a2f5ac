"""The fixture of the tests of stored sessions."""

from pathlib import Path

import pytest

from .catalog_disk import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    """An empty directory of transcripts, and the catalog of its sessions."""
    return Disk(tmp_path)
