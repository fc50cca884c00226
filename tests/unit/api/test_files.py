# SPDX-License-Identifier: Apache-2.0
"""Files that commands write: whole or not at all."""

import os
from pathlib import Path

import pytest

from pysim.errors import MachineError, ProblemError
from pysim.file_io import check_writable, written


def write_half_and_raise(file: Path, error: Exception) -> None:
    with written(file) as partial:
        partial.write_text("half")
        raise error


def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.svg"
    file.write_text("old")
    with pytest.raises(KeyError):
        write_half_and_raise(file, KeyError())
    with pytest.raises(ProblemError, match=r"a\.svg cannot be written: No space left"):
        write_half_and_raise(file, OSError(28, "No space left on device"))
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["a.svg"]


def test_a_new_file_takes_the_place_of_the_old_one_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to("a")
    with written(tmp_path / "link") as partial:
        partial.write_text("new")
    assert (tmp_path / "a").read_text() == "new" and (tmp_path / "link").is_symlink()


def test_an_existing_file_is_kept_where_it_must_not_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(MachineError, match="File exists"), written(tmp_path / "a", MachineError, replace=False) as partial:
        partial.write_text("new")
    assert (tmp_path / "a").read_text() == "old"


def test_a_device_is_written_to_and_stays_a_device() -> None:
    with written(Path("/dev/null")) as partial:
        partial.write_text("x")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(ProblemError, match="/dev/full cannot be written: No space left"), written(Path("/dev/full")) as partial:
        partial.write_text("x")


@pytest.mark.parametrize(
    ("place", "reason"), [("no/a", "there is no folder"), ("", "it is a folder"), ("loop/a", "there is no folder"), ("a\0b", "null")]
)
def test_a_file_that_cannot_be_written_is_refused_beforehand(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ProblemError, match=reason):
        check_writable(tmp_path / place)
    assert os.listdir(tmp_path) == ["loop"]
