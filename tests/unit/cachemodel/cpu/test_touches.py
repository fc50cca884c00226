# SPDX-License-Identifier: Apache-2.0
"""What plain C of every algorithm of the CPU loads and stores misses about as many lines in exact caches as its plan's description says.

The compiler notes each access (`native/test/record_touches.c`), so no algorithm needs a trace of its own: a new one is held to its
description by a line of `PROBLEMS`.
"""

import os
import subprocess
from itertools import chain
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pytest
from checkout import NATIVE
from native_library import native
from recorders import compiler, opened, plain_sources

from pysim import planner
from pysim.algorithms import algorithm_named, algorithms_for
from pysim.cachemodel.cpu.threads import touched_bytes
from pysim.cachemodel.simulator import walk
from pysim.cachemodel.simulator.hierarchy import Chunk, Hierarchy
from pysim.cachemodel.simulator.trace import pages
from pysim.machine.cpu import Machine
from pysim.machine.load import load
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.cost import Cost
from pysim.record.plan import Plan
from pysim.runtime import cpu as runtime

ROOM = 1 << 22
PRODUCT, CONVOLUTION = "gemm:96x120x80", "conv:ic16ih16oc24kh3ph1"
PROBLEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sconv": (CONVOLUTION, {}),
    "im2col": (CONVOLUTION, {}),
    "winograd": (CONVOLUTION, {}),
    "polyphase": ("conv:ic3ih36oc16kh7sh2ph3", {}),
    "direct_nchwc": (CONVOLUTION, {"layout": "nchw4c"}),
    "blocked": (CONVOLUTION, {}),
    "depthwise": ("conv:g32ic32ih24oc32kh3ph1", {}),
    "grouped": ("conv:g4ic24ih20oc24kh3ph1", {"layout": "nchw4c"}),
    "gemm": (PRODUCT, {}),
    "unpacked": (PRODUCT, {}),
    "panels": (PRODUCT, {"prepared": True}),
    "skinny": ("gemm:4x384x192", {}),
}
WITHOUT_PLAIN_C = {"split_panels", "integer_winograd"}  # their tiles have no plain C
IN_LOOPS = {"strassen", "strassen_1x1"}  # whose sums are loops of operators, which are compiled without notes
OF_BYTES = {"channels_last"}  # of which nothing is compiled here

# Largest median error of an algorithm. Nests with capacity misses alone err by more if a buffer fits a cache only in part.
BARS = {"winograd": 0.3, "polyphase": 0.45, "skinny": 0.45}
TRACE_BARS = BARS | {"im2col": 0.2}  # rows of columns straddle lines
BAR, ALL = 0.1, 0.08  # of other algorithms; of all together


def small(sets: int) -> Machine:
    """One unit, plain C, and caches too small for these problems: an L1 of `sets` sets of 8 lines, an L2 of 32 KiB."""
    on = load("zen4")
    inner, outer, last = on.levels
    levels = msgspec.structs.replace(inner, sets=sets, ways=8), msgspec.structs.replace(outer, sets=64, ways=8), last
    core = msgspec.structs.replace(on.core, units=tuple(unit for unit in on.core.units if unit.target == "portable"))
    return msgspec.structs.replace(on, core=core, levels=levels)


MACHINES = small(8), small(16)


@pytest.fixture(scope="module")
def touching(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(ffi, lib): the library whose loops and kernels note what they touch."""
    command = compiler()
    folder = tmp_path_factory.mktemp("touching")
    flags = ["-std=gnu11", "-fPIC", "-fvisibility=hidden", "-w", f"-I{NATIVE}", "-c"]
    noting = ["-Og", "-fsanitize=thread", "-Dmemcpy=pysim_touching_memcpy", "-Dmemset=pysim_touching_memset"]
    plain = plain_sources(folder)
    made = [path for path in plain if path.parent == folder and "vec_f32" in path.read_text() and not path.stem.startswith("loops")]
    loops = [*made, *(path for path in plain if path.parent.name in ("algorithms", "portable"))]  # no problem is of another type
    others = [*(path for path in plain if path not in loops and path.parent != folder), NATIVE / "test" / "record_touches.c"]
    if (NATIVE / "x86").exists() and os.uname().machine == "x86_64":
        others.append(NATIVE / "x86" / "probe_x86.c")
    for part, sources, more in (("loops", loops, noting), ("others", others, ["-O0"])):  # files of one name are in both
        (folder / part).mkdir()
        subprocess.run([*command, *flags, *more, *map(str, sources)], check=True, cwd=folder / part)
    path = folder / "libtouching.so"
    subprocess.run([*command, "-shared", *map(str, folder.glob("*/*.o")), "-o", str(path), "-lm", "-lpthread"], check=True)
    return opened(path, "pysim_touched")


def touches(library: tuple[Any, Any], plan: Plan) -> Chunk:
    """Every access of one run of a plan to its operands and workspace, which lie on pages one after another from 0 on."""
    (ffi, lib), w = library, plan.workload
    here, _ = runtime.library()

    def native(struct: Any, kind: str) -> Any:
        copy = ffi.new(f"pysim_{kind} *")
        ffi.buffer(copy)[:] = here.buffer(struct)[:]
        return copy

    problem = native(runtime.problem_struct(w, plan.layout), "problem")
    schedule, size = native(runtime.schedule_struct(plan.schedule, w), "schedule"), ffi.new("int64_t *")
    assert lib.pysim_prepared_bytes(problem, schedule, size) == 0, ffi.string(lib.pysim_last_error())
    operands = [w.input_elements, w.filter_elements] if isinstance(w, Conv) else [w.m * w.k, w.k * w.n]
    sizes = [*(count * w.element_bytes for count in operands), w.output_elements * w.result_bytes]
    sizes[1] = size[0] or sizes[1]
    assert lib.pysim_workspace_bytes(problem, schedule, 1, size) == 0
    *starts, end = pages([*sizes, size[0]])
    room = np.zeros(end + 4096, np.uint8)
    base = room.ctypes.data + -room.ctypes.data % 4096
    kept = np.empty(ROOM, np.int64), np.empty(ROOM, np.int32), np.empty(ROOM, np.uint8)
    noted = lib.pysim_touched
    noted.addresses, noted.sizes, noted.is_write = (
        ffi.cast(kind, column.ctypes.data) for kind, column in zip(("int64_t *", "int32_t *", "uint8_t *"), kept, strict=True)
    )
    noted.room, noted.n = ROOM, 0
    epilogue, at = ffi.new("pysim_epilogue *", [1.0, 0.0, ffi.NULL, 0]), [ffi.cast("void *", base + start) for start in starts]
    assert lib.pysim_run(problem, schedule, epilogue, 1, *at, size[0], ffi.NULL) == 0, ffi.string(lib.pysim_last_error())
    count, noted.room = noted.n, 0
    assert count <= ROOM
    addresses, sizes_, writes = (column[:count] for column in kept)
    own = (addresses >= base + starts[0]) & (addresses < base + end)
    return Chunk(addresses[own] - base, sizes_[own], writes[own])


def differences(library: tuple[Any, Any], algorithm: str, on: Machine) -> list[float]:
    """At L1 and L2, of the lines that come in, or of all that the operands have, whichever are more."""
    text, asked = PROBLEMS[algorithm]
    plan = planner.plan(text, on, algorithm=algorithm, **asked)
    assert isinstance(plan.cost, Cost)
    chunk, caches = touches(library, plan), Hierarchy.from_machine(on)
    caches.run([chunk])
    counted, touched, found = caches.run([chunk], warm=True), touched_bytes(plan.workload) / on.line_bytes, []
    for level, supplier in zip(on.levels[:2], ("L2", "L3"), strict=True):
        misses, lines = counted[level.name].misses, plan.cost.levels[supplier]
        found.append(abs(lines["lines"] - lines["writeback_lines"] - misses) / max(misses, touched))
    return found


def apart(library: tuple[Any, Any], algorithm: str, on: Machine) -> list[float]:
    """The same between the plain C code and the trace that the description makes (`simulator.walk`)."""
    text, asked = PROBLEMS[algorithm]
    plan = planner.plan(text, on, algorithm=algorithm, **asked)
    chunk, caches = touches(library, plan), Hierarchy.from_machine(on)
    caches.run([chunk])
    counted, touched = caches.run([chunk], warm=True), touched_bytes(plan.workload) / on.line_bytes
    nests = algorithm_named(algorithm, plan.workload, on).nests(plan).loops
    traced, _ = walk.simulate(nests, Hierarchy.from_machine(on), warm=True)
    pairs = [(traced[level.name].misses, counted[level.name].misses) for level in on.levels[:2]]
    return [abs(one - other) / max(other, touched) for one, other in pairs]


@native
def test_misses_of_the_trace_of_every_algorithms_description_are_those_of_its_plain_c(touching: tuple[Any, Any]) -> None:
    found = {name: [off for on in MACHINES for off in apart(touching, name, on)] for name in PROBLEMS}
    assert not {name: off for name, off in found.items() if median(off) > TRACE_BARS.get(name, BAR)}
    assert median(chain(*found.values())) < ALL


@native
def test_lines_of_every_algorithms_plain_c_are_those_of_its_description(touching: tuple[Any, Any]) -> None:
    of_any = {one.NAME for text in (CONVOLUTION, PRODUCT) for one in algorithms_for(parse(text), MACHINES[0])}
    assert {*PROBLEMS} == of_any - WITHOUT_PLAIN_C - IN_LOOPS - OF_BYTES
    found = {name: [off for on in MACHINES for off in differences(touching, name, on)] for name in PROBLEMS}
    over = {name: off for name, off in found.items() if median(off) > BARS.get(name, BAR)}
    assert not over
    assert median(chain(*found.values())) < ALL
