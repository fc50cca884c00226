# SPDX-License-Identifier: Apache-2.0
"""The trace of a schedule is what the portable kernel executes, access for access, and what the simulator counts."""

import platform
import subprocess
from collections.abc import Iterable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import im2col_baseline
import msgspec
import numpy as np
import pytest
from checkout import NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st
from native_library import im2col
from plan_trace import accesses, recorded
from recorders import compiler, opened, plain_sources

from pysim.algorithms.nest import BROADCASTS
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import OPERANDS, PHASES, Cache, Chunk, Hierarchy, tag
from pysim.errors import NativeError
from pysim.problem.conv import Conv
from pysim.problem.dtypes import RESULT_BYTES, SIZES
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload
from pysim.record.schedule import Schedule
from pysim.registry.cpu import kernels
from pysim.runtime import cpu as runtime

PORTABLE = {dtype: f"{dtype}_win_8x4__portable" for dtype in ("f32", "f64", "bf16", "s8")}
STACK_USERS = {row.name for row in kernels() if row.along_filters}  # they turn a tile around on the stack, which a trace leaves out
SMALL = Hierarchy([Cache("L1", 8, 4, 64), Cache("L2", 32, 8, 64)])


def schedule(kernel: str, channels: int, **fields: Any) -> Schedule:
    row = next(row for row in kernels() if row.name == kernel)
    rest: dict[str, Any] = {"stationary": "input_stationary", "pack": "tiles", "k2": 2, "k3": 2} | fields
    return Schedule(kernel=kernel, windows=row.windows, filters=row.filters, channels=channels, **rest)


def joined(chunks: Iterable[Chunk]) -> tuple[np.ndarray, ...]:
    """Addresses, sizes, stores and tags of a whole trace."""
    kept = list(chunks)
    return tuple(np.concatenate([np.asarray(chunk[i]) for chunk in kept]) for i in range(4))


LANES = {("avx512", "f32"): 16, ("avx512", "f64"): 8, ("avx2", "f32"): 8, ("avx2", "f64"): 4}
RECORDING_BROADCASTS = {
    "v_set1(by_bases ? *row_of(&rows, j) : f[j * f_step])": "v_spread(by_bases ? row_of(&rows, j) : &f[j * f_step])",
    "v_set1(w[j])": "v_spread(&w[j])",
}


def recording_copy(folder: Path) -> list[Path]:
    """The vector kernels' sources over a vector type that records; what they read to broadcast is recorded too."""
    x86 = folder / "x86"
    (x86 / "vectors").mkdir(parents=True)
    (x86 / "pack.h").write_text((NATIVE / "x86" / "pack.h").read_text())
    lanes = (NATIVE / "x86" / "lanes.h").read_text()
    for broadcast, recording in RECORDING_BROADCASTS.items():
        assert lanes.count(broadcast) == 1
        lanes = lanes.replace(broadcast, recording)
    (x86 / "lanes.h").write_text(lanes)
    copies = []
    for (target, dtype), count in LANES.items():
        kind = "float" if dtype == "f32" else "double"
        names = f"typedef {kind} T;\nenum {{ LANES = {count} }};\n#define SUFFIX(name) name##_{dtype}__{target}\n"
        (x86 / "vectors" / f"vec_{target}_{dtype}.h").write_text(names + '#include "test/record_vector.h"\n')
        copies.append(x86 / f"{target}_{dtype}.c")
        copies[-1].write_text((NATIVE / "x86" / copies[-1].name).read_text())
    return copies


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(ffi, lib): the library built so that its kernels write down what they load and store, whatever this CPU is."""
    command = compiler()
    folder = tmp_path_factory.mktemp("recorded")
    sources = [source for source in plain_sources(folder) if source.parent != folder]  # no template, and so none of its rows, is traced
    if platform.machine() == "x86_64":
        sources += [NATIVE / "x86" / "probe_x86.c", *recording_copy(folder)]
    flags = ["-std=gnu11", "-O0", "-shared", "-fPIC", "-fvisibility=hidden", "-DPYSIM_RECORD", f"-I{folder}", f"-I{NATIVE}"]
    flags += ["-D__builtin_cpu_supports(name)=1", "-Wno-builtin-macro-redefined"]
    path = folder / "librecorded.so"
    subprocess.run([*command, *flags, *map(str, sources), "-o", str(path), "-lm", "-lpthread"], check=True)
    return opened(path, "pysim_recorded")


def executed(recorder: tuple[Any, Any], workload: Workload, s: Schedule, room: int) -> tuple[trace.Bases, tuple[np.ndarray, ...]]:
    """Where the operands of a real run of the portable kernel lay, and the addresses, sizes and stores that it executed."""
    ffi, lib = recorder
    size = ffi.new("int64_t *")
    element, result = SIZES[workload.dtype], RESULT_BYTES[workload.dtype]
    copies = {name: ffi.new(f"pysim_{name} *") for name in ("problem", "schedule")}

    def native(kind: str, struct: Any) -> Any:
        here, _ = runtime.library()
        ffi.buffer(copies[kind])[:] = here.buffer(struct)[:]
        return copies[kind]

    plan, problem = native("schedule", runtime.schedule_struct(s, workload)), native("problem", runtime.problem_struct(workload))
    assert lib.pysim_prepared_bytes(problem, plan, size) == 0
    if isinstance(workload, Gemm):
        sizes = [size[0] or workload.k * workload.n * element, workload.m * workload.k * element, workload.m * workload.n * result]
    else:
        image, output = workload.channels * workload.height * workload.width, workload.filters * workload.windows
        sizes = [image * workload.batch * element, size[0], output * workload.batch * result]
    assert lib.pysim_workspace_bytes(problem, plan, 1, size) == 0
    buffers = [np.zeros(n + 64, np.uint8) for n in [*sizes, size[0]]]
    pointers = [ffi.cast("void *", b.ctypes.data + -b.ctypes.data % 64) for b in buffers]
    at = trace.Bases(*(int(ffi.cast("intptr_t", p)) for p in pointers))
    operands = [pointers[1], pointers[0]] if isinstance(workload, Gemm) else [pointers[0], pointers[1]]
    kept = np.zeros(room, np.int64), np.zeros(room, np.int32), np.zeros(room, np.uint8)
    record = lib.pysim_recorded
    record.room, record.n = room, 0
    record.addresses, record.sizes = ffi.cast("int64_t *", kept[0].ctypes.data), ffi.cast("int32_t *", kept[1].ctypes.data)
    record.is_write = ffi.cast("uint8_t *", kept[2].ctypes.data)
    epilogue = ffi.new("pysim_epilogue *", [1.0, 0.0, ffi.NULL, 0])
    status = lib.pysim_run(problem, plan, epilogue, 1, *operands, pointers[2], pointers[3], size[0], ffi.NULL)
    assert status == 0, ffi.string(lib.pysim_last_error())
    assert record.n <= room
    on_stack = np.ones(record.n, bool)
    for buffer in buffers:
        start = buffer.ctypes.data
        on_stack &= (kept[0][: record.n] < start) | (kept[0][: record.n] >= start + buffer.nbytes)
    assert s.kernel in STACK_USERS or not on_stack.any()
    return at, tuple(array[: record.n][~on_stack] for array in kept)


def assert_trace_is_executed(recorder: tuple[Any, Any], workload: Workload, s: Schedule) -> int:
    at, ran = executed(recorder, workload, s, room=1 << 22)
    addresses, sizes, is_write, tags = joined(accesses(workload, s, at))
    assert len(addresses) == len(ran[0])
    for traced, real in zip((addresses, sizes, is_write), ran, strict=True):
        np.testing.assert_array_equal(traced, real)
    assert_tags_name_the_buffers(workload, s, at, addresses, is_write, tags)
    return len(addresses)


def assert_tags_name_the_buffers(w: Workload, s: Schedule, at: trace.Bases, addresses: np.ndarray, is_write: np.ndarray, tags: np.ndarray):
    operand, phase = tags & 7, tags >> 4
    starts = {"input": at.input, "filter": at.filters, "output": at.output, "packed": at.workspace}
    names = sorted(starts, key=lambda name: starts[name])
    where = np.array(names)[np.searchsorted(sorted(starts.values()), addresses, side="right") - 1]
    named = np.array(["packed" if name.startswith("packed") else name for name in OPERANDS])[operand]
    np.testing.assert_array_equal(where, named)
    assert set(operand[(is_write == 1) & (phase == PHASES.index("store"))]) == {OPERANDS.index("output")}
    assert set(phase[operand == OPERANDS.index("output")]) == {PHASES.index("store")}
    assert (OPERANDS.index("packed_input") in operand) == (s.pack == "tiles")
    assert (OPERANDS.index("packed_filter") in operand) == (isinstance(w, Gemm) and s.algorithm is None)
    packs = phase == PHASES.index("pack")
    assert not is_write[~packs & (operand != OPERANDS.index("output"))].any()


CONVS = [
    Conv(channels=3, height=9, width=11, filters=6, kernel_h=3, kernel_w=3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1),
    Conv(channels=5, height=8, width=7, filters=4, kernel_h=3, kernel_w=2, stride_h=2, stride_w=3, pad_left=2, pad_bottom=3, dtype="f64"),
    Conv(batch=2, channels=4, height=6, width=6, filters=10, kernel_h=1, kernel_w=1, groups=2),
    Conv(
        channels=2, height=10, width=10, filters=3, kernel_h=3, kernel_w=3, dilation_h=2, dilation_w=2, pad_top=4, pad_left=1, pad_bottom=4
    ),
]


@pytest.mark.parametrize("stationary", ["input_stationary", "weight_stationary"])
@pytest.mark.parametrize("workload", CONVS, ids=lambda w: w.text)
def test_a_convolutions_trace_is_what_the_portable_kernel_executes(recorder, workload, stationary):
    s = schedule(PORTABLE[workload.dtype], 2, stationary=stationary)
    assert assert_trace_is_executed(recorder, workload, s) > 1000


@pytest.mark.parametrize("stationary", ["input_stationary", "weight_stationary"])
def test_windows_read_in_place_are_traced_as_reads_of_the_image(recorder, stationary):
    assert_trace_is_executed(recorder, CONVS[2], schedule(PORTABLE["f32"], 1, stationary=stationary, pack="none"))


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("stationary", ["input_stationary", "weight_stationary"])
def test_a_products_trace_is_what_the_portable_kernel_executes(recorder, trans_a, trans_b, stationary):
    workload = Gemm(m=11, n=19, k=7, trans_a=trans_a, trans_b=trans_b)
    assert_trace_is_executed(recorder, workload, schedule(PORTABLE["f32"], 3, stationary=stationary))


VECTOR_ROWS = [row for row in kernels() if (row.target, row.dtype) in LANES and row.form != "outer"]
EDGES = [
    CONVS[0],
    CONVS[2],
    CONVS[3],
    Conv(channels=3, height=7, width=41, filters=20, kernel_h=3, kernel_w=5, stride_h=2, stride_w=2, pad_left=2, pad_top=1),
    Conv(channels=2, height=6, width=200, filters=33, kernel_h=2, kernel_w=3, pad_right=70, pad_left=70),
    Conv(channels=2, height=5, width=60, filters=3, kernel_h=2, kernel_w=4, stride_w=5, dilation_w=3, pad_left=3),
    Conv(channels=3, height=20, width=20, filters=40, kernel_h=1, kernel_w=2, stride_w=3, pad_left=1),
    Conv(channels=2, height=3, width=140, filters=15, kernel_h=3, kernel_w=40, pad_left=9),
    *(Conv(channels=2, height=2, width=150, filters=3, kernel_h=1, kernel_w=n, pad_left=1) for n in (5, 9, 10, 17, 18)),  # lanes + 1
    *(Conv(channels=2, height=2, width=150, filters=3, kernel_h=1, kernel_w=n, stride_w=2) for n in (10, 11, 18, 19, 34, 35)),
    Conv(channels=2, height=1, width=200, filters=3, kernel_h=1, kernel_w=9, stride_w=16, pad_left=8),
    *(Gemm(m=37, n=83, k=19, trans_a=a, trans_b=b) for a in (False, True) for b in (False, True)),
]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the vector kernels are built on x86_64 only")
@pytest.mark.parametrize("row", VECTOR_ROWS, ids=lambda row: row.name)
def test_a_vector_rows_trace_is_what_its_source_executes(recorder, row):
    for workload, stationary in zip(EDGES, cycle(["input_stationary", "weight_stationary"]), strict=False):
        typed = msgspec.structs.replace(workload, dtype=row.dtype)
        assert assert_trace_is_executed(recorder, typed, schedule(row.name, 2, stationary=stationary, k2=1)) > 100


IN_PLACE = [row for row in VECTOR_ROWS if row.form == BROADCASTS]


@pytest.mark.parametrize("kernel", [PORTABLE["f32"], PORTABLE["f64"], *(row.name for row in IN_PLACE)])
@pytest.mark.parametrize("stationary", ["input_stationary", "weight_stationary"])
def test_a_product_that_does_not_pack_a_is_traced_as_executed(recorder, kernel, stationary):
    if platform.machine() != "x86_64" and kernel not in PORTABLE.values():
        pytest.skip("the vector kernels are built on x86_64 only")
    for a, b, algorithm in product((False, True), (False, True), ("unpacked", "panels")):
        workload = Gemm(m=23, n=83, k=13, trans_a=a, trans_b=b, dtype=kernel.split("_")[0])
        packs = ["none"] if algorithm == "panels" else ["tiles"] if b else ["tiles", "none"]
        for pack in packs:
            s = schedule(kernel, 5, stationary=stationary, algorithm=algorithm, pack=pack, k2=1)
            assert assert_trace_is_executed(recorder, workload, s) > 100


small = st.integers(1, 3)
pads = st.integers(0, 3)


@settings(max_examples=60, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(("batch", "channels", "filters", "kernel_h", "kernel_w", "stride_h", "stride_w"), small),
            **dict.fromkeys(("pad_top", "pad_left", "pad_bottom", "pad_right"), pads),
            **{name: st.integers(1, 2) for name in ("dilation_h", "dilation_w", "groups")},
            **{name: st.integers(5, 12) for name in ("height", "width")},
            "dtype": st.sampled_from(sorted(PORTABLE)),
        }
    ),
    st.sampled_from(["input_stationary", "weight_stationary"]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_any_convolution_is_traced_as_executed(recorder, fields, stationary, channels, k2, k3):
    groups = fields["groups"]
    workload = Conv(**(fields | {"channels": fields["channels"] * groups, "filters": 3 * fields["filters"] * groups}))
    s = schedule(PORTABLE[workload.dtype], min(channels, fields["channels"]), stationary=stationary, k2=k2, k3=k3)
    assert_trace_is_executed(recorder, workload, s)


ROWS = [row.name for row in kernels() if row.group == 1]
GROUPS = [row.name for row in kernels() if row.group > 1]
LAYER = Conv(channels=6, height=14, width=14, filters=70, kernel_h=3, kernel_w=3, pad_top=1, pad_left=1, pad_bottom=1, pad_right=1)


def test_rows_of_groups_of_k_are_refused():
    for kernel in GROUPS:
        row = next(row for row in kernels() if row.name == kernel)
        workload, s = msgspec.structs.replace(LAYER, dtype=row.dtype), schedule(kernel, 4)
        with pytest.raises(NativeError, match=r"groups of k, whose accesses cannot be traced|panels of weights that were made before"):
            accesses(workload, s)


@pytest.mark.parametrize("kernel", ROWS)
def test_every_row_of_the_registry_is_traced_whether_this_cpu_runs_it_or_not(kernel):
    row = next(row for row in kernels() if row.name == kernel)
    workload = msgspec.structs.replace(LAYER, dtype=row.dtype)
    element, result = SIZES[row.dtype], RESULT_BYTES[row.dtype]
    s = schedule(kernel, 4)
    at = trace.bases(workload, s)
    addresses, sizes, is_write, tags = joined(accesses(workload, s))

    def of(name: str, phase: str) -> np.ndarray:
        return tags == tag(name, phase)

    assert sizes.max() <= row.lane_windows * row.lane_filters * element or "portable" in kernel
    stored = of("output", "store") & (is_write == 1)
    outputs = workload.filters * workload.windows * result
    assert sizes[stored].sum() == 2 * outputs  # two channel sets, each output written by both
    assert sizes[of("output", "store") & (is_write == 0)].sum() == outputs  # and read by the second
    assert set(covered(addresses[stored], sizes[stored])) == set(range(at.output, at.output + outputs))
    image = workload.channels * workload.height * workload.width * element
    read = of("input", "pack")
    assert set(covered(addresses[read], sizes[read])) == set(range(at.input, at.input + image))
    panels = of("packed_input", "pack")
    assert is_write[panels].all() and not is_write[of("packed_input", "compute")].any()
    assert set(covered(addresses[of("packed_input", "compute")], sizes[of("packed_input", "compute")])) <= set(
        covered(addresses[panels], sizes[panels])
    )


def covered(addresses: np.ndarray, sizes: np.ndarray) -> Iterable[int]:
    """Every byte of some accesses."""
    for address, size in set(zip(addresses.tolist(), sizes.tolist(), strict=True)):
        yield from range(address, address + size)


def test_a_wider_vector_makes_fewer_accesses_of_the_same_panel():
    counts = {}
    for kernel in ("f32_win_32x14__avx512", "f32_win_16x6__avx2"):
        _, sizes, _, tags = joined(accesses(LAYER, schedule(kernel, 6)))
        counts[kernel] = set(sizes[tags == tag("packed_input", "compute")])
    assert counts == {"f32_win_32x14__avx512": {64, 16}, "f32_win_16x6__avx2": {32, 16}}  # 196 = 6 * 32 + 4 windows


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("workload", [CONVS[0], Gemm(m=30, n=50, k=20)], ids=lambda w: w.text)
def test_simulating_natively_counts_what_the_trace_in_chunks_counts(workload, warm):
    s = schedule(PORTABLE["f32"], 3)
    direct = trace.simulate(workload, s, SMALL, warm=warm, flush=True)
    if warm:
        SMALL.run(accesses(workload, s))
    chunked = SMALL.run(accesses(workload, s), warm=warm, flush=True)
    np.testing.assert_array_equal(direct.counts, chunked.counts)
    assert direct.accesses == chunked.accesses > 0


def test_a_warm_run_of_a_small_problem_misses_nothing_and_a_cold_one_each_line_once():
    large = Hierarchy([Cache("L1", 1024, 16, 64)])
    s = schedule(PORTABLE["f32"], 3)
    addresses, sizes, _, _ = joined(accesses(CONVS[0], s))
    lines = len(np.unique(np.concatenate([addresses // 64, (addresses + sizes - 1) // 64])))
    assert trace.simulate(CONVS[0], s, large)["L1"].misses == lines
    assert trace.simulate(CONVS[0], s, large, warm=True)["L1"].misses == 0


def test_the_baseline_writes_each_column_element_once_and_multiplies_the_columns():
    workload, s = CONVS[1], schedule(PORTABLE["f64"], 10)
    gemm = im2col_baseline.product_of(workload)
    addresses, sizes, is_write, tags = joined(recorded(im2col_baseline.runs_of(workload, s)))
    written = (tags == tag("columns", "pack")) & (is_write == 1)
    assert written.sum() == len(np.unique(addresses[written])) == gemm.k * gemm.n
    image = np.arange(workload.channels * workload.height * workload.width, dtype=np.float64) + 1
    columns = runtime.aligned((gemm.k, gemm.n), np.float64)
    im2col(workload, image, columns)
    reads = tags == tag("input", "pack")
    first = addresses[reads] - trace.PAGE
    np.testing.assert_array_equal(image[first // 8], columns[columns > 0])  # in the order of the columns
    assert (sizes[reads] == 8).all()
    packed = (tags == tag("columns", "pack")) & (is_write == 0)
    assert sizes[packed].sum() == gemm.k * gemm.n * 8  # the product packs each column element once
    assert (tags == tag("output", "store")).sum() >= gemm.m * gemm.n


def test_a_pointwise_baseline_has_no_columns_and_the_grouped_one_reads_them_all():
    s = schedule(PORTABLE["f32"], 1)
    _, _, _, tags = joined(recorded(im2col_baseline.runs_of(CONVS[2], s)))
    assert OPERANDS.index("columns") not in tags & 7 and OPERANDS.index("input") in tags & 7
    grouped = Conv(batch=2, channels=4, height=6, width=6, filters=6, kernel_h=3, kernel_w=3, groups=2)
    addresses, _, is_write, tags = joined(recorded(im2col_baseline.runs_of(grouped, s)))
    columns = (tags & 7) == OPERANDS.index("columns")
    assert set(addresses[columns & (is_write == 0)]) <= set(addresses[columns & (is_write == 1)])
    assert len(set(addresses[columns & (is_write == 1)])) == 36 * 16
    outputs = (tags == tag("output", "store")) & (is_write == 1)
    assert len(set(addresses[outputs].tolist())) == 2 * 6 * 16


def test_simulating_the_baseline_counts_what_its_trace_in_chunks_counts():
    s = schedule(PORTABLE["f64"], 10)
    direct = im2col_baseline.simulate(CONVS[1], s, SMALL, flush=True)
    np.testing.assert_array_equal(direct.counts, SMALL.run(recorded(im2col_baseline.runs_of(CONVS[1], s)), flush=True).counts)
    assert direct.by("L1", operand="columns", phase="pack").stores == 30 * im2col_baseline.product_of(CONVS[1]).n


def test_the_worked_number_of_the_module():
    workload = Conv(channels=2, height=1, width=8, filters=1, kernel_h=1, kernel_w=1)
    _, sizes, is_write, _ = joined(accesses(workload, schedule(PORTABLE["f32"], 2, pack="none")))
    assert len(sizes) == 2 * (8 + 4) + 8 and set(sizes) == {4} and is_write.sum() == 8


def test_buffers_lie_on_pages_apart_and_the_same_each_time():
    s = schedule("f32_win_32x14__avx512", 6)
    at = trace.bases(LAYER, s)
    assert at == trace.bases(LAYER, s)
    assert all(base % trace.PAGE == 0 for base in at[:4]) and at.input == trace.PAGE
    assert at.filters - at.input >= 6 * 14 * 14 * 4 and at.workspace - at.output >= 70 * 196 * 4


def test_a_schedule_that_does_not_fit_is_refused_in_a_sentence():
    with pytest.raises(NativeError, match=r"schedule\.channels is 7; expected 1\.\.6"):
        trace.simulate(LAYER, schedule(PORTABLE["f32"], 7), SMALL)
    with pytest.raises(NativeError, match="another dtype"):
        list(accesses(LAYER, schedule(PORTABLE["f64"], 2)))
    overlapping = trace.Bases(4096, 4096, 1 << 20, 1 << 21)._replace(output=4096)
    with pytest.raises(NativeError, match="output"):
        list(accesses(LAYER, schedule(PORTABLE["f32"], 2), overlapping))


def test_what_no_trace_can_be_made_of_is_refused_by_the_library():
    ffi, lib = runtime.library()
    problem, plan = runtime.problem_struct(LAYER), runtime.schedule_struct(schedule(PORTABLE["f32"], 2), LAYER)
    at = ffi.new("pysim_trace_bases *", trace.bases(LAYER, schedule(PORTABLE["f32"], 2)))
    below = ffi.new("pysim_trace_bases *", [-4096, 4096, 8192, 12288, 0])
    sink = ffi.callback("pysim_trace_sink", lambda *chunk: None)
    product = Gemm(m=1, n=1, k=2)
    native_structs = runtime.problem_struct(product), runtime.schedule_struct(schedule(PORTABLE["f32"], 2), product)
    for what, status in (
        ("bases", lib.pysim_trace(problem, plan, ffi.NULL, sink, ffi.NULL)),
        ("sink", lib.pysim_im2col_trace(runtime.conv_struct(LAYER), at, ffi.NULL, ffi.NULL)),
        ("base -4096", lib.pysim_trace(problem, plan, below, sink, ffi.NULL)),
        ("schedule is NULL", lib.pysim_trace(problem, ffi.NULL, at, sink, ffi.NULL)),
        ("a", lib.pysim_trace(*native_structs, ffi.new("pysim_trace_bases *"), sink, ffi.NULL)),
        ("state", lib.pysim_simulate(problem, plan, at, ffi.NULL, ffi.NULL)),
    ):
        assert status == lib.PYSIM_BAD_ARGUMENT, what
