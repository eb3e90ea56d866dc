"""Files that are whole or not there."""

import subprocess
from pathlib import Path

import pytest

from dsec.bus.errors import DiskFull
from dsec.bus.files import write_private


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_private(tmp_path / "f", "old")
    write_private(tmp_path / "f", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "new")]


@pytest.mark.node
def test_on_a_full_disk_the_old_file_stays_and_the_error_is_typed(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=True)
    try:
        write_private(tmp_path / "f", "old")
        with pytest.raises(DiskFull, match="no space for"):
            write_private(tmp_path / "f", "x" * 100_000)
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("f", "old")]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
