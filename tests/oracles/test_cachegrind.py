# SPDX-License-Identifier: Apache-2.0
"""The simulator counts what valgrind's cachegrind counts on a whole real run of the portable convolution.

Valgrind's lackey writes down every instruction and data access of the program, cachegrind counts the misses of the same run.
Cachegrind's rules, from its manual (5.1, 5.8): LRU, write-allocate, the last level asked only for what misses in I1 or D1;
write-backs do not count; an instruction that modifies memory is one read; an access to two lines that finds one or none of them
is one miss, and then asks the last level for both. So every access is fed as a load, and the accesses of two lines one by one.
I1 is so large that it misses first uses only; what it asks of the last level comes from cores whose own cache is empty.
"""

import os
import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checkout import NATIVE
from recorders import plain_sources

from pysim.cachemodel.simulator.hierarchy import Cache, Chunk, Hierarchy, tag

LINE = 64
KINDS = {"L": "compute", "M": "compute", "S": "store", "I": "other"}  # lackey's letter -> phase that tells them apart
NAMES = {"I": ("Ir", "I1mr", "ILmr"), "L": ("Dr", "D1mr", "DLmr"), "M": ("Dr", "D1mr", "DLmr"), "S": ("Dw", "D1mw", "DLmw")}
ENVIRONMENT = {"PATH": os.environ.get("PATH", "")}  # a program reads its environment, so two runs need the same one
pytestmark = pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed (apt install valgrind)")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One convolution by the portable row and nothing else, linked statically."""
    compiler = os.environ.get("CC", "cc").split()
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"no C compiler {compiler[0]}: set CC")
    path = tmp_path_factory.mktemp("program") / "portable_conv"
    sources = [source for source in plain_sources(path.parent) if source.parent != path.parent]  # the row is in no template
    sources.append(NATIVE / "test" / "portable_conv.c")
    if platform.machine() == "x86_64":
        sources.append(NATIVE / "x86" / "probe_x86.c")
    command = [*compiler, "-std=gnu11", f"-I{NATIVE}", "-O1", "-static"]
    subprocess.run([*command, *map(str, sources), "-o", str(path), "-lm", "-lpthread"], check=True)
    return path


def lackey(program: Path) -> Iterator[tuple[str, int, int]]:
    """Every access of a run: I, L, S or M, address, bytes."""
    log = program.with_suffix(".lackey")
    subprocess.run(["valgrind", "--tool=lackey", "--trace-mem=yes", f"--log-file={log}", str(program)], check=True, env=ENVIRONMENT)
    with log.open() as lines:
        for line in lines:
            if line[:2] in ("I ", " L", " S", " M"):
                address, size = line[3:].split(",")
                yield line[:2].strip(), int(address, 16), int(size)


def cachegrind(program: Path, **caches: str) -> Counter[str]:
    """Its nine counts; caches are I1, D1 and LL as "bytes,ways,line"."""
    out = program.with_suffix(".cachegrind")
    sizes = [f"--{name}={text}" for name, text in caches.items()]
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", f"--cachegrind-out-file={out}", *sizes, str(program)]
    subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    rows = dict(line.split(":", 1) for line in out.read_text().splitlines() if line.startswith(("events:", "summary:")))
    return Counter(dict(zip(rows["events"].split(), map(int, rows["summary"].split()), strict=True)))


class Rules:
    """Cachegrind's rules around the simulator: core 0 is D1 and the last level, the others reach the last level only."""

    def __init__(self, d1: Cache, last: Cache) -> None:
        self.hierarchy = Hierarchy([d1, last], cores=256)
        self.hierarchy.reset()
        self.count: Counter[str] = Counter()
        self.waiting: list[tuple[str, int, int]] = []
        self.seen: set[int] = set()
        self.direct: Counter[int] = Counter()

    def access(self, kind: str, address: int, size: int) -> None:
        self.count[NAMES[kind][0]] += 1
        lines = range(address // LINE, (address + size - 1) // LINE + 1)
        if kind == "I" and not self.seen.issuperset(lines):
            self.flush()
            self.seen.update(lines)
            self.missed(kind, [self.ask_last(line) for line in lines])
        elif kind != "I" and len(lines) == 2:
            self.flush()
            asked = {line: self.ask(line, 0) for line in lines}
            if any(d1 for d1, _ in asked.values()):
                self.missed(kind, [last if d1 else self.ask_last(line) for line, (d1, last) in asked.items()])
        elif kind != "I":
            self.waiting.append((kind, address, size))

    def missed(self, kind: str, last: list[bool]) -> None:
        self.count[NAMES[kind][1]] += 1
        self.count[NAMES[kind][2]] += any(last)

    def ask(self, line: int, core: int) -> tuple[bool, bool]:
        """Whether a line misses the first and the last level."""
        result = self.hierarchy.simulate([line * LINE], 1, 0, cores=core, warm=True)
        return result["D1"].misses == 1, result["LL"].misses == 1

    def ask_last(self, line: int) -> bool:
        self.direct[line] += 1
        first, last = self.ask(line, self.direct[line])
        assert first  # this core never had the line
        return last

    def flush(self) -> None:
        """Counts what has waited: data accesses of one line each."""
        if self.waiting:
            kinds, addresses, sizes = zip(*self.waiting, strict=True)
            tags = np.array([tag("other", KINDS[kind]) for kind in kinds], np.uint8)
            result = self.hierarchy.run([Chunk(np.array(addresses), np.array(sizes), 0, tags)], warm=True)
            for kind in "LS":
                self.count[NAMES[kind][1]] += result.by("D1", phase=KINDS[kind]).misses
                self.count[NAMES[kind][2]] += result.by("LL", phase=KINDS[kind]).misses
            self.waiting.clear()


def test_a_real_run_of_the_portable_convolution_misses_as_often_as_cachegrind_says(program):
    expected = cachegrind(program, I1="1048576,16,64", D1="4096,2,64", LL="32768,8,64")
    rules = Rules(Cache("D1", 32, 2, LINE), Cache("LL", 64, 8, LINE, shared=True))
    for kind, address, size in lackey(program):
        rules.access(kind, address, size)
    rules.flush()
    assert dict(rules.count) == dict(expected)
    assert expected["D1mr"] > 1000 and expected["DLmr"] > 100 and expected["Dr"] > 100_000
