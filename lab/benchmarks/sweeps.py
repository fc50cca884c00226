# SPDX-License-Identifier: Apache-2.0
"""Sweeps that are killed, and sweeps on Dask's workers, started by command line as docs/cli.md says.

    python lab/benchmarks/sweeps.py [--tasks 2000] [--workers 2]

Prints how many tasks a sweep of simulations had left when it was killed at half and how many it then computed, whether the results equal
those of workers behind a scheduler, and the seconds of one worker over those of several. Exit status 1 if a task was computed twice or a
result differs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PYSIM, DASK = [sys.executable, "-m", "pysim"], [sys.executable, "-m", "distributed.cli"]
WAYS = (4, 8, 12, 16)  # of L2
PER_MACHINE = 2 * len(WAYS)


def spec(folder: Path, tasks: int) -> Path:
    """Simulations of small products on two machines with several sizes of L2."""
    problems = [f"gemm:{32 + 8 * (at % 8)}x{32 + 8 * (at // 8 % 8)}x{32 + at // 64}" for at in range(-(-tasks // PER_MACHINE))]
    path = folder / "sweep.toml"
    lines = [f"problems = {json.dumps(problems)}", 'machines = ["zen4", "zen5"]', 'how = "simulate"']
    path.write_text("\n".join([*lines, "[set]", f'"levels.L2.ways" = {list(WAYS)}', ""]))
    return path


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def results_of(path: Path) -> dict[str, Any]:
    """The result of each task; a task that stands twice ends the script."""
    found: dict[str, Any] = {}
    for line in path.read_text().splitlines():
        one = json.loads(line)
        key = json.dumps(one["task"], sort_keys=True)
        if key in found:
            sys.exit(f"computed twice: {key}")
        found[key] = one["result"]
    return found


def killed_at_half(path: Path, output: Path, tasks: int) -> int:
    """Runs a sweep until half of its results are there, and kills it; how many there are."""
    running = subprocess.Popen([*PYSIM, "sweep", str(path), "-o", str(output)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while running.poll() is None and lines_of(output) < tasks // 2:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    return lines_of(output)


@contextmanager
def scheduler(folder: Path, workers: int) -> Iterator[str]:
    """The address of a scheduler with workers of one thread."""
    file = folder / f"scheduler-{workers}.json"
    started = [[*DASK[:-1], "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]]
    worker = [*DASK[:-1], "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(one, env=alone, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for one in started + [worker] * workers
    ]
    try:
        while not (file.exists() and file.read_text().strip()):
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        wait = f"import distributed; distributed.Client({address!r}).wait_for_workers({workers}, 60)"
        subprocess.run([sys.executable, "-c", wait], check=True)
        yield address
    finally:
        for one in running:
            one.terminate()
            one.wait()


def shared(path: Path, output: Path, folder: Path, workers: int) -> float:
    """Seconds of a sweep by workers behind a scheduler. The first results, for which workers read the package, do not count."""
    with scheduler(folder, workers) as address:
        running = subprocess.Popen([*PYSIM, "sweep", str(path), "-o", str(output), "--dask", address], stdout=subprocess.DEVNULL)
        while running.poll() is None and lines_of(output) < 8 * workers:
            time.sleep(0.01)
        begun, there = time.perf_counter(), lines_of(output)
        running.wait()
        return (time.perf_counter() - begun) / max(1, lines_of(output) - there)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path, resumed = spec(folder, given.tasks), folder / "resumed.jsonl"
        there = killed_at_half(path, resumed, given.tasks)
        begun = time.perf_counter()
        told = subprocess.run([*PYSIM, "sweep", str(path), "-o", str(resumed)], capture_output=True, text=True, check=True).stderr
        whole = results_of(resumed)
        print(f"killed with {there} of {len(whole)} results; {told.strip().splitlines()[0] if told.strip() else ''}", flush=True)
        print(f"the other {len(whole) - there} took {time.perf_counter() - begun:.1f} s", flush=True)
        seconds = {count: shared(path, folder / f"{count}.jsonl", folder, count) for count in (1, given.workers)}
        for count in seconds:
            if results_of(folder / f"{count}.jsonl") != whole:
                sys.exit(f"the results of {count} workers differ")
        ratio = seconds[1] / seconds[given.workers]
        print(f"results of one and of {given.workers} workers are equal; the tasks of one take {ratio:.2f} times as long")


if __name__ == "__main__":
    main()
