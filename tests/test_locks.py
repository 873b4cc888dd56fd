"""Locks that a killed process cannot leave behind, and that touch nothing else."""

import os
from pathlib import Path

import pytest

from oarlock.data.datasets import filling
from oarlock.errors import OarlockError
from oarlock.locks import alone_in, locked


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in (".lock", ".shop.oar.lock"):
        (tmp_path / name).symlink_to(victim)
    for lock in (alone_in(tmp_path), locked(tmp_path / ".shop.oar.lock", "busy"), filling(tmp_path)):
        with pytest.raises(OarlockError, match="it is a link, which is not followed: remove it"), lock:
            raise AssertionError("locked")
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to(tmp_path / "nothing")  # which would be made
    with pytest.raises(OarlockError, match="it is a link"), alone_in(tmp_path):
        raise AssertionError("locked")
    assert victim.read_text() == "precious" and not (tmp_path / "nothing").exists()


def test_a_file_in_place_of_a_lock_is_not_emptied(tmp_path: Path) -> None:
    """It may have another name."""
    (tmp_path / "victim").write_text("precious")
    os.link(tmp_path / "victim", tmp_path / ".lock")
    with alone_in(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["victim"]
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_pipe_in_place_of_a_lock_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OarlockError, match="it is no file"), alone_in(tmp_path):
        raise AssertionError("locked")
