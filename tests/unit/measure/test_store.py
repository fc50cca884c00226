# SPDX-License-Identifier: Apache-2.0
"""The measurement store keeps everything it was given, whatever happens to the process or the file."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from checkout import ROOT

from pysim.errors import PysimError, StoreError
from pysim.measure.store import SCHEMA, Store, default_path, environment, now
from pysim.record.measurement import Measurement

PROBLEM = "conv:mb1ic64ih56oc64kh3ph1"


def measurement(**changes: object) -> Measurement:
    m = Measurement(
        problem=PROBLEM,
        machine="zen4",
        kernel="f32_win_32x14__avx512",
        schedule='{"k2":8,"k3":98}',
        state="hot",
        samples=(1.25e-3, 1.5e-3, 0.1 + 0.2),
        environment={"cpu": "a cpu", "governor": "performance"},
        time="2026-11-20T10:00:00.000+00:00",
        run="r1",
    )
    return msgspec.structs.replace(m, **changes)


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process that can import pysim as this one does."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)


def test_a_run_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        store.add_run([measurement(), measurement(kernel="another")])
        with pytest.raises(StoreError):
            store.add_run([measurement(kernel="third"), measurement(kernel=None)])  # which no row may lack
        assert store.find() == [measurement(), measurement(kernel="another")]
        store.add_run([measurement(kernel="third")])
        assert len(store) == 3


def test_what_is_added_is_found_again_to_the_bit(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        first = store.add(measurement())
        second = store.add(measurement(kernel="im2col_openblas", schedule="", samples=()))
        assert second > first
    with Store(tmp_path / "s.sqlite") as store:
        assert store.find() == [measurement(), measurement(kernel="im2col_openblas", schedule="", samples=())]
        assert len(store) == 2


@pytest.mark.parametrize("field", ["problem", "machine", "kernel", "schedule", "state", "run"])
def test_each_part_of_the_key_tells_measurements_apart(tmp_path: Path, field: str) -> None:
    other = {field: "cold" if field == "state" else "other"}
    with Store(tmp_path / "s.sqlite") as store:
        store.add(measurement())
        store.add(measurement(**other))
        assert store.find(**other) == [measurement(**other)]
        assert store.find(**{field: getattr(measurement(), field)}) == [measurement()]
        assert store.find(**{field: "neither"}) == []


def test_the_same_key_twice_keeps_both_measurements(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        store.add(measurement())
        store.add(measurement(samples=(7.0,)))
        assert [m.samples for m in store.find(problem=PROBLEM)] == [measurement().samples, (7.0,)]


def test_a_key_is_data_and_never_sql(tmp_path: Path) -> None:
    evil = "x'; DROP TABLE measurement; --"
    with Store(tmp_path / "s.sqlite") as store:
        store.add(measurement(problem=evil))
        assert store.find(problem=evil) == [measurement(problem=evil)]


def test_a_killed_process_loses_nothing_that_add_returned_for(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    code = """
        import sys
        sys.path.insert(0, sys.argv[2])
        from pysim.measure.store import Store
        from test_store import measurement
        store = Store(sys.argv[1])
        for i in range(1000):
            store.add(measurement(run=str(i)))
            print(i, flush=True)
    """
    with python(code, str(path), str(Path(__file__).parent)) as process:
        assert process.stdout is not None
        seen = -1
        while seen < 20:
            seen = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()
    acknowledged = max([seen, *map(int, rest)])
    with Store(path) as store:
        runs = [int(m.run) for m in store.find()]
    assert runs[: acknowledged + 1] == list(range(acknowledged + 1))
    assert len(runs) <= acknowledged + 2


def test_two_processes_write_one_new_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    code = """
        import sys
        sys.path.insert(0, sys.argv[3])
        from pysim.measure.store import Store
        from test_store import measurement
        with Store(sys.argv[1]) as store:
            for i in range(50):
                store.add(measurement(machine=sys.argv[2], run=str(i)))
    """
    processes = [python(code, str(path), name, str(Path(__file__).parent)) for name in ("a", "b")]
    assert [p.wait(timeout=250) for p in processes] == [0, 0]
    for p in processes:
        assert p.stdout is not None
        p.stdout.close()
    with Store(path) as store:
        for name in ("a", "b"):
            assert [m.run for m in store.find(machine=name)] == [str(i) for i in range(50)]


@pytest.mark.parametrize("content", [b"this is no database, only a text that is long enough " * 40, b"SQLite format 3\x00" * 99])
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"s\.sqlite is damaged or no measurement store"):
        Store(path)
    assert path.read_bytes() == content


def test_a_damaged_page_is_an_error_and_deletes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        for i in range(200):
            store.add(measurement(run=str(i)))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    path.write_bytes(content)
    with Store(path) as store, pytest.raises(StoreError, match=r"s\.sqlite.*[Nn]othing in it was changed"):
        store.find()
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE measurement (precious TEXT)")
    other.execute("INSERT INTO measurement VALUES ('data')")
    other.commit()
    other.close()
    content = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store(path)
    assert path.read_bytes() == content


def test_a_store_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    Store(path).close()
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version={SCHEMA + 1}")
    newer.close()
    with pytest.raises(StoreError, match=f"schema {SCHEMA + 1}, this pysim reads and writes schema {SCHEMA}"):
        Store(path)


def test_a_path_that_cannot_be_written_names_itself_and_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "s.sqlite", tmp_path):
        with pytest.raises(StoreError, match="set PYSIM_STORE to another path") as caught:
            Store(path)
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, PysimError)


def test_a_write_that_fails_is_an_error_and_the_store_goes_on(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        store.add(measurement())
        store._db.execute("PRAGMA query_only=1")  # what a full or read-only disk amounts to
        with pytest.raises(StoreError, match=r"s\.sqlite: attempt to write a readonly database"):
            store.add(measurement(run="r2"))
        store._db.execute("PRAGMA query_only=0")
        store.add(measurement(run="r3"))
        assert [m.run for m in store.find()] == ["r1", "r3"]


def test_a_run_that_a_full_disk_cuts_off_says_so_and_leaves_the_runs_before_it(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        store.add_run([measurement()])
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count={pages + 20}")
        large = measurement(run="r2", samples=(1.0,) * 2000)
        with pytest.raises(StoreError, match="database or disk is full: check path, permissions and free space"):
            store.add_run([large] * 100)
        store._db.execute("PRAGMA max_page_count=100000")
        store.add_run([measurement(run="r3")])
        assert [m.run for m in store.find()] == ["r1", "r3"]


def test_the_store_writes_ahead_and_waits_for_the_disk(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_default_path_is_the_users_data_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSIM_STORE", str(tmp_path / "mine.sqlite"))
    assert default_path() == tmp_path / "mine.sqlite"
    monkeypatch.delenv("PYSIM_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "pysim" / "measurements.sqlite"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "share" / "pysim" / "measurements.sqlite"
    with Store() as store:
        assert store.path == default_path() and store.path.exists()


def test_the_environment_names_processor_and_versions() -> None:
    found = environment()
    assert {"cpu", "cpus", "system", "python", "numpy"} <= found.keys()
    assert all(found.values())
    assert now().endswith("+00:00")


def test_the_version_is_that_of_our_distribution_and_not_of_the_project_that_is_called_pysim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"pysim-planner": "7", "pysim": "3", "numpy": "2"}.__getitem__)
    assert environment.__wrapped__()["pysim"] == "7"


def test_a_user_without_a_home_learns_how_to_name_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSIM_STORE", "~nosuchuser/x")
    with pytest.raises(StoreError, match="set PYSIM_STORE"):
        default_path()


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_samples_that_are_no_times_are_a_damaged_store(tmp_path: Path, wrong: float) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        store.add(measurement(samples=(1e-3, wrong)))
        with pytest.raises(StoreError, match="not times"):
            store.find()


def test_a_number_where_samples_should_be_is_a_damaged_store_and_not_as_many_zeros(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        store.add(measurement())
    with sqlite3.connect(tmp_path / "s.sqlite") as db:
        db.execute("UPDATE measurement SET samples = ?", (1 << 40,))
    db.close()
    with Store(tmp_path / "s.sqlite") as store, pytest.raises(StoreError, match="damaged"):
        store.find()
