# SPDX-License-Identifier: Apache-2.0
"""The measurement store: one SQLite file that keeps every measurement with its key, environment and samples.

A measurement is committed, and on disk (WAL, synchronous=FULL), before `add` returns: a run that is interrupted loses
only the candidate that was being timed. Several processes may write; SQLite serialises them. Rows are never deleted or
rewritten. A file that is no store, is damaged or comes from a newer version is refused, not replaced.

Worked number: 30 samples take 240 bytes; with key and environment a measurement takes about 1 kB.
"""

import functools
import math
import os
import platform
import sqlite3
import subprocess
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from pysim.errors import StoreError
from pysim.record.measurement import Measurement
from pysim.runtime.foreign import installed

SCHEMA = 1
APPLICATION_ID = 0x7079736D  # "pysm": tells our files from other SQLite files
ELSEWHERE = "set PYSIM_STORE to another path"
BUSY_SECONDS = 30.0  # how long one process waits for another's transaction
MEASURING_BUSY_SECONDS = 5.0  # the same, where measuring goes on without the store

_CREATE = """
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    problem TEXT NOT NULL,
    machine TEXT NOT NULL,
    kernel TEXT NOT NULL,
    schedule TEXT NOT NULL,
    state TEXT NOT NULL,
    samples BLOB NOT NULL,
    environment TEXT NOT NULL,
    time TEXT NOT NULL,
    run TEXT NOT NULL
)
"""
_CREATE_MARKS = "CREATE TABLE IF NOT EXISTS mark (id INTEGER PRIMARY KEY, name TEXT NOT NULL, run TEXT NOT NULL, time TEXT NOT NULL)"
_INDEX = "CREATE INDEX measurement_key ON measurement (problem, machine, kernel, schedule, state)"
_FIELDS = ("problem", "machine", "kernel", "schedule", "state", "samples", "environment", "time", "run")
_INSERT = f"INSERT INTO measurement ({', '.join(_FIELDS)}) VALUES ({', '.join('?' * len(_FIELDS))})"


def default_path() -> Path:
    """$PYSIM_STORE, else measurements.sqlite in pysim's folder of the user's data directory (XDG)."""
    try:
        if given := os.environ.get("PYSIM_STORE"):
            return Path(given).expanduser()
        data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError as error:  # of a user without a home
        raise StoreError(f"the measurement store has no path: {str(error).rstrip('.')}; {ELSEWHERE}") from None
    return Path(data) / "pysim" / "measurements.sqlite"


class Store:
    """An open store; use it as a context manager. Every failure is a StoreError that names the file.

    >>> with Store() as store:
    ...     store.add(measurement)
    """

    def __init__(self, path: str | Path | None = None, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = Path(path) if path is not None else default_path()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self.path}: its folder cannot be made ({error}); {ELSEWHERE}") from None
        self._busy_seconds = busy_seconds
        with _clear(self.path):
            self._db = sqlite3.connect(self.path, timeout=busy_seconds, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise

    def _prepare(self) -> None:
        """Makes an empty file a store; refuses any other file before writing to it."""
        if self._version() == 0:
            _patiently(lambda: self._db.execute("PRAGMA journal_mode=WAL").fetchone(), self._busy_seconds)
            self._db.execute("BEGIN IMMEDIATE")
            if self._version() == 0:  # another process may have been faster
                self._db.execute(_CREATE)
                self._db.execute(_INDEX)
                self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version={SCHEMA}")
            self._db.execute("COMMIT")
        self._db.execute("PRAGMA synchronous=FULL")

    def _version(self) -> int:
        """0 for an empty file, SCHEMA for a store; StoreError for anything else."""
        owner = self._db.execute("PRAGMA application_id").fetchone()[0]
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not tables and not owner and not version:
            return 0
        if owner != APPLICATION_ID:
            raise StoreError(f"{self.path} is an SQLite file of another program and was left as it is; {ELSEWHERE}")
        if version != SCHEMA:
            raise StoreError(
                f"{self.path} has schema {version}, this pysim reads and writes schema {SCHEMA}; it was left as it is. "
                f"Use the pysim that wrote it, or {ELSEWHERE}"
            )
        return version

    def add(self, m: Measurement) -> int:
        """Stores one measurement, on disk when this returns; gives its id."""
        with _clear(self.path):
            cursor = self._db.execute(_INSERT, _row(m))
        return int(cursor.lastrowid or 0)

    def add_run(self, measurements: Iterable[Measurement]) -> None:
        """Stores the measurements of a run, all or none, on disk when this returns."""
        rows = [_row(m) for m in measurements]
        with _clear(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.executemany(_INSERT, rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite itself ends it on a full disk
                    self._db.execute("ROLLBACK")
                raise

    def find(
        self,
        *,
        problem: str | None = None,
        machine: str | None = None,
        kernel: str | None = None,
        schedule: str | None = None,
        state: str | None = None,
        run: str | None = None,
    ) -> list[Measurement]:
        """The measurements that match every argument given, oldest first."""
        wanted = {"problem": problem, "machine": machine, "kernel": kernel}
        wanted |= {"schedule": schedule, "state": state, "run": run}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in given) or "1"
        with _clear(self.path):
            query = f"SELECT {', '.join(_FIELDS)} FROM measurement WHERE {where} ORDER BY id"
            return [_measurement(row) for row in self._db.execute(query, tuple(given.values()))]

    def mark(self, name: str, run: str) -> None:
        """Saves a run under a name, beside those that have it already."""
        with _clear(self.path):
            self._db.execute(_CREATE_MARKS)
            self._db.execute("INSERT INTO mark (name, run, time) VALUES (?, ?, ?)", (name, run, now()))

    def marked(self, name: str) -> list[str]:
        """The runs saved under a name, oldest first."""
        with _clear(self.path):
            self._db.execute(_CREATE_MARKS)
            return [str(run) for (run,) in self._db.execute("SELECT run FROM mark WHERE name = ? ORDER BY id", (name,))]

    def marks(self) -> list[tuple[str, int, str]]:
        """Each name, the number of its runs, and when the last was saved."""
        with _clear(self.path):
            self._db.execute(_CREATE_MARKS)
            found = self._db.execute("SELECT name, count(*), max(time) FROM mark GROUP BY name ORDER BY max(id)")
            return [(str(name), int(count), str(time)) for name, count, time in found]

    def __len__(self) -> int:
        """The number of measurements."""
        with _clear(self.path):
            return int(self._db.execute("SELECT count(*) FROM measurement").fetchone()[0])

    def close(self) -> None:
        """Closes the file; everything added is on disk already."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class TolerantStore(Store):
    """A store for work that goes on without one. At the first failure it calls `tell` with one sentence; from then on it keeps nothing and
    has nothing, since what was lost may have been part of a run."""

    def __init__(self, tell: Callable[[str], object], path: str | Path | None = None) -> None:
        self._tell, self._lost = tell, False
        with self._told():
            super().__init__(path, MEASURING_BUSY_SECONDS)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            self._lost = True
            self._tell(f"measurements are shown and not kept: {error}")

    def add(self, m: Measurement) -> int:
        """As `Store.add`; 0 where it is not kept."""
        if not self._lost:
            with self._told():
                return super().add(m)
        return 0

    def add_run(self, measurements: Iterable[Measurement]) -> None:
        """As `Store.add_run`."""
        if not self._lost:
            with self._told():
                super().add_run(measurements)

    def find(self, **wanted: str | None) -> list[Measurement]:
        """As `Store.find`."""
        if not self._lost:
            with self._told():
                return super().find(**wanted)
        return []

    def mark(self, name: str, run: str) -> None:
        """As `Store.mark`."""
        if not self._lost:
            with self._told():
                super().mark(name, run)

    def close(self) -> None:
        if hasattr(self, "_db"):
            super().close()


def _row(m: Measurement) -> tuple[object, ...]:
    samples = array("d", m.samples).tobytes()
    environment = msgspec.json.encode(m.environment, order="sorted").decode()
    return (m.problem, m.machine, m.kernel, m.schedule, m.state, samples, environment, m.time, m.run)


def _measurement(row: tuple[object, ...]) -> Measurement:
    """A row as a value; ValueError for a row that no version of this module writes."""
    fields = dict(zip(_FIELDS, row, strict=True))
    if not isinstance(kept := fields["samples"], bytes):  # bytes(10**12) would allocate as many zeros
        raise ValueError("the samples of a measurement are not numbers")
    samples = array("d")
    samples.frombytes(kept)
    if not all(0 <= one < math.inf for one in samples):
        raise ValueError("the samples of a measurement are not times")
    fields["samples"] = tuple(samples)
    fields["environment"] = msgspec.json.decode(str(fields["environment"]))
    return msgspec.convert(fields, Measurement)


@contextmanager
def _clear(path: Path) -> Iterator[None]:
    """Turns SQLite's errors and unreadable rows into a StoreError with the file's name and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "another process holds it" if "locked" in str(error) else "check path, permissions and free space"
        raise StoreError(f"{path}: {error}: {hint}, or {ELSEWHERE}. Nothing in it was changed") from None
    except (sqlite3.Error, ValueError, msgspec.ValidationError) as error:
        state = f"{path} is damaged or no measurement store ({error}). Nothing in it was changed"
        raise StoreError(f"{state}; move it away, or {ELSEWHERE}") from None


def _patiently(step: Callable[[], object], seconds: float) -> None:
    """Retries a step that SQLite refuses without waiting while another process opens the same new file."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            step()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


# -------------------------------------------------------------------------------------------------------- environment


def now() -> str:
    """The time of a measurement: ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@functools.cache
def environment() -> dict[str, str]:
    """Conditions of a measurement besides its key: CPU, governor, kernel, versions. Unknown values are left out."""
    details = {
        "cpu": _cpu_model(),
        "cpus": str(os.cpu_count() or ""),
        "governor": _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "smt": _text(Path("/sys/devices/system/cpu/smt/active")),
        "huge_pages": _text(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": installed("numpy"),
        "pysim": installed("pysim-planner"),  # on PyPI pysim is another project
        "commit": _commit(),
    }
    return {name: value for name, value in details.items() if value}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    """The name with family, model and stepping, since virtual machines hide the name."""
    lines = _text(Path("/proc/cpuinfo")).split("\n\n")[0].splitlines()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = fields.get("model name") or fields.get("cpu") or platform.processor()
    numbers = [f"{key} {fields[key]}" for key in ("cpu family", "model", "stepping") if key in fields]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def _commit() -> str:
    """The commit of the checkout of this file, with "+" if files are modified; empty outside a checkout."""
    root = Path(__file__).parent.parent.parent
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
