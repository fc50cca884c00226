# SPDX-License-Identifier: Apache-2.0
"""`pysim run`, `compare` and `search` measure and show results though the store cannot be written."""

import sqlite3
from contextlib import closing, contextmanager

import pytest
from command_line import SMALL, cache, invoke, native, own_files  # noqa: F401

from pysim.measure import store

pytestmark = pytest.mark.usefixtures("own_files")
QUICK = ("--seconds", "0.001")
UNUSABLE = ("damaged", "folder", "of another program", "locked", "full")


@contextmanager
def unusable_store(kind, folder, monkeypatch):
    """A store that cannot be written, or not any more."""
    path = folder / "store.sqlite"
    monkeypatch.setenv("PYSIM_STORE", str(path))
    if kind == "damaged":
        path.write_text("no store" * 200)
    elif kind == "folder":  # of a user who may not write there, and of root
        (folder / "file").write_text("")
        monkeypatch.setenv("PYSIM_STORE", str(folder / "file" / "store.sqlite"))
    elif kind == "of another program":
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE theirs (x)")
    elif kind == "full":
        monkeypatch.setattr(store, "_INSERT", "INSERT INTO nowhere VALUES (?)")
    if kind != "locked":
        yield
        return
    monkeypatch.setattr(store, "MEASURING_BUSY_SECONDS", 0.01)
    with store.Store(path), closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield


@native
@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("words", [("run", SMALL), ("compare", SMALL, *QUICK), ("search", SMALL, "--budget", "0.1")], ids=" ".join)
def test_results_are_measured_and_shown_where_the_store_cannot_be_written(words, kind, tmp_path, monkeypatch):
    with unusable_store(kind, tmp_path, monkeypatch):
        result = invoke(*words)
        assert result.exit_code == 0, result.output
        assert SMALL in result.stdout
        told = [line for line in result.stderr.splitlines() if line.startswith("measurements are shown and not kept: ")]
        assert len(told) == 1
        assert "store.sqlite" in told[0] and "PYSIM_STORE" in told[0]


def test_an_empty_store_says_what_fills_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PYSIM_STORE", str(tmp_path / "store.sqlite"))
    result = invoke("history")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "nothing is measured yet; pysim compare PROBLEM measures and keeps it\n"
