# SPDX-License-Identifier: Apache-2.0
"""Jobs, native calls bound to their arrays, and chains of them: the bits of the calls one by one, and the first error."""

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from native_library import native

import pysim
from pysim.check.reference import shapes
from pysim.errors import NativeError
from pysim.network.operators import NATIVE
from pysim.problem.text import parse
from pysim.record.plan import on_cpu
from pysim.runtime import cpu, cpu_launch
from pysim.runtime.array_steps import pair_step, rows_step
from pysim.runtime.operators import Window, copy_step, map_step, pool_step, reorder_step
from pysim.runtime.steps import Chain

pytestmark = native

THREADS = 8

ALGORITHMS = {
    "sconv": "conv:mb2ic5ih9oc7kh3ph1",
    "im2col": "conv:mb2ic5ih9oc7kh3ph1",
    "winograd": "conv:mb2ic5ih9oc7kh3ph1",
    "polyphase": "conv:mb2ic3ih19oc16kh7sh2ph3",
    "depthwise": "conv:g16mb2ic16oc16ih9kh3ph1",
    "blocked": "conv:mb2ic32ih9oc32kh3ph1",
    "gemm": "gemm:13x21x17:tt",
    "unpacked": "gemm:13x21x17",
    "panels": "gemm:13x21x17:nt",
    "skinny": "gemm:2x40x30",
    "strassen": "gemm:13x20x18:nt",
}


@pytest.mark.parametrize(("algorithm", "problem"), ALGORITHMS.items())
def test_eight_threads_run_one_job_of_every_algorithm_at_once(algorithm, problem):
    w, rng = parse(problem), np.random.default_rng(0)
    plan = pysim.plan(w, algorithm=algorithm, prepared=algorithm in ("panels", "strassen"))
    first, weights = (rng.standard_normal(shape).astype(np.float32) for shape in (shapes(w).x, shapes(w).w))
    runs = cpu_launch.Prepared(w, weights, on_cpu(plan)[0])
    inputs = [first * (1 + i) for i in range(THREADS)]
    want = [runs(x) for x in inputs]
    with ThreadPoolExecutor(THREADS) as pool:
        for i, found in enumerate(pool.map(lambda i: runs(inputs[i % THREADS]), range(20 * THREADS))):
            assert np.array_equal(found, want[i % THREADS]), i


def test_a_job_needs_its_structs_no_longer_and_a_run_needs_an_opened_job():
    ffi, lib = cpu.library()
    plan = pysim.plan("conv:mb1ic5ih9oc7kh3ph1", algorithm="sconv")
    w, schedule = plan.workload, on_cpu(plan)[0]
    x, f = np.ones((1, 5, 9, 9), np.float32), np.ones((7, 5, 3, 3), np.float32)
    launch, out = cpu_launch.Launch(w, schedule), np.empty((1, 7, 9, 9), np.float32)
    packed = launch.prepare(f)
    work, epilogue = cpu.aligned(launch.workspace_bytes, np.uint8), launch.epilogue(None, None)
    rest = (epilogue, 1, ffi.from_buffer(x), packed, ffi.from_buffer(out), ffi.from_buffer(work), work.nbytes, ffi.NULL)
    structs = cpu.problem_struct(w), cpu.schedule_struct(schedule, w)
    job = cpu.open_job(*structs)
    for struct in structs:
        ffi.memmove(struct, bytes(ffi.sizeof(struct[0])), ffi.sizeof(struct[0]))
    cpu.check(lib.pysim_run_job(job, *rest))
    assert np.array_equal(out, pysim.conv2d(x, f, padding=1))
    with pytest.raises(NativeError, match="at least 1"):
        cpu.check(lib.pysim_open(*structs, job, ffi.sizeof(job)))
    for not_opened in (job, ffi.NULL):
        with pytest.raises(NativeError, match="call pysim_open first"):
            cpu.check(lib.pysim_run_job(not_opened, *rest))
    with pytest.raises(NativeError, match=r"expected \d+ bytes"):
        cpu.check(lib.pysim_open(*structs, job, ffi.sizeof(job) - 8))


def test_a_chain_is_its_steps_one_by_one_whatever_lies_in_the_arrays():
    rng = np.random.default_rng(0)
    x, sums, mean = np.empty((1, 6, 9, 11), np.float32), np.empty((1, 5, 9, 11), np.float32), np.empty((5, 1, 1), np.float32)
    residual = np.empty_like(sums)
    w, bias = rng.standard_normal((5, 6, 3, 3)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    conv = pysim.prepare("conv:mb1ic6ih9iw11oc5kh3ph1", w, bias, activation=("clamp", -1, 4))
    workspace = cpu.aligned(conv.workspace_bytes + 64, np.uint8)
    steps = [
        conv.step(x, sums, workspace, residual),
        map_step(sums, sums, 5, scale=bias, activation="silu"),
        pool_step(mean, sums.reshape(5, 9, 11), Window((9, 11)), largest=False),
    ]
    chain = Chain(steps)
    for _ in range(2):
        x[...], residual[...] = rng.standard_normal(x.shape), rng.standard_normal(residual.shape)
        chain()
        together = mean.copy()
        want = np.clip(pysim.conv2d(x, w, bias, padding=1) + residual, -1, 4) * bias[:, None, None]
        assert np.allclose(together[:, 0, 0], (want / (1 + np.exp(-want))).mean(axis=(0, 2, 3)), rtol=1e-5, atol=1e-6)
        for step in steps:
            step()
        assert (mean == together).all()


def test_a_bound_run_is_checked_once_and_keeps_its_arguments():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((13, 21)).astype(np.float32), rng.standard_normal((21, 17)).astype(np.float32)
    plan = pysim.plan("gemm:13x17x21")
    product, out = cpu_launch.Launch(plan.workload, on_cpu(plan)[0]), np.empty((13, 17), np.float32)
    step = product.step(a, b, out, cpu.aligned(product.workspace_bytes, np.uint8))
    call = step.bound()
    step.struct.workspace_bytes = step.struct.threads = 0  # the step's, not the bound call's
    with pytest.raises(NativeError, match=r"threads|workspace"):
        step.bound()
    del step
    gc.collect()
    assert call() is None and np.array_equal(out, product.run(a, b))
    with pytest.raises(NativeError, match="only the arguments of runs"):
        map_step(out, out, 1).bound()
    with pytest.raises(NativeError, match="overlaps"):
        product.step(a, b, a.reshape(-1)[: out.size].reshape(out.shape), cpu.aligned(product.workspace_bytes, np.uint8)).bound()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_any_strides_are_numpys(dtype):
    rng = np.random.default_rng(0)
    for _ in range(300):
        rank = int(rng.integers(1, 6))
        whole = rng.standard_normal(rng.integers(1, 40 if rank < 4 else 6, rank)).astype(dtype)
        cut = tuple(slice(int(rng.integers(0, size)), None, int(rng.integers(1, 3))) for size in whole.shape)
        x = whole[cut].transpose(rng.permutation(rank))
        around = np.full([size + 2 for size in x.shape], 7, dtype)
        out = around[tuple(slice(1, size + 1) for size in x.shape)]
        wanted = around.copy()
        wanted[tuple(slice(1, size + 1) for size in x.shape)] = x
        copy_step(out, x)()
        assert (around == wanted).all()
    for rows, columns in product((1, 7, 40), range(1, 7)):  # few columns are interleaved
        x = np.arange(columns * rows, dtype=dtype).reshape(columns, rows)
        for to in (columns, columns + 3):
            out = np.zeros((rows, to), dtype)
            copy_step(out[:, :columns], x.T)()
            assert (out[:, :columns] == x.T).all() and not out[:, columns:].any()
    number = np.full((), 3, dtype)
    filled = np.zeros((5, 7), dtype)
    copy_step(filled, np.broadcast_to(number, filled.shape))()
    assert (filled == 3).all()
    assert copy_step(filled, filled[::-1]) is None and copy_step(filled.astype(np.int32), filled) is None


def test_a_transposition_of_more_axes_than_a_copy_has_is_several_copies():
    x, order = np.arange(3 * 64 * 3 * 4 * 5, dtype=np.float32).reshape(3, 4, 2, 4, 2, 3, 4, 5), (0, 1, 5, 2, 6, 3, 7, 4)
    out = np.empty([x.shape[axis] for axis in order], np.float32)
    step = NATIVE["Transpose"](out, [x], {"perm": order})
    assert isinstance(step, Chain)
    step()
    assert (out == x.transpose(order)).all()


def test_a_copy_that_is_none_is_refused():
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    for field, numbers, told in (
        ("sizes", [0], "at least 1"),
        ("from", [-1], "at least 0"),
        ("to", [0], "at least 1"),
        ("sizes", [1 << 62], "int64"),
    ):
        step = copy_step(y, x)
        how = cpu.library()[0].cast("pysim_copy *", step.struct.of)
        getattr(how, field)[0] = numbers[0]
        with pytest.raises(NativeError, match=told):
            step()
    with pytest.raises(NativeError, match="overlaps"):
        copy_step(x[1:], x[:-1])()


def test_a_chain_stops_at_its_first_error_and_says_it():
    x, y, z = (np.ones((1, 1, 8), np.float32) for _ in range(3))
    chain = Chain([map_step(y, x, 1, activation=("clamp", 3, 4)), map_step(x[:, :, :4], x[:, :, 1:5], 1), map_step(z, y, 1)])
    with pytest.raises(NativeError, match="overlaps"):
        chain()
    assert (y == 3).all() and (z == 1).all()


def test_a_bound_call_keeps_its_arrays_alive():
    def bound():
        return map_step(np.empty((1, 1, 1000), np.float32), np.ones((1, 1, 1000), np.float32), 1, shift=np.full(1, 2, np.float32))

    steps = [bound() for _ in range(50)]
    junk = [np.zeros((1, 1, 1000), np.float32) for _ in range(50)]
    Chain(steps)()
    ffi = cpu.library()[0]
    results = [np.frombuffer(ffi.buffer(ffi.cast("float *", step.struct.result), 4000), np.float32) for step in steps]
    assert (np.array(results) == 3).all() and not np.any(junk)


def same_on_threads(steps):
    for result, step in steps:
        step()
        alone = result.tobytes()
        for threads in (1, 2, 3, 7):
            result.fill(np.nan)
            step.on_threads(threads)
            step()
            assert result.tobytes() == alone


@pytest.mark.parametrize(("planes", "block"), [(12, 1), (48, 8)])
def test_maps_pools_and_conversions_give_the_same_bits_on_any_number_of_threads(planes, block):
    rng = np.random.default_rng(0)
    x, residual = (rng.standard_normal((1, planes, 61, 67)).astype(np.float32) for _ in range(2))
    scale, shift = (rng.standard_normal(planes // 2).astype(np.float32) for _ in range(2))  # repeated, as for two images
    out, pooled = np.empty_like(x), np.empty((1, planes, 30, 33), np.float32)
    steps = [
        (out, map_step(out, x, planes, scale, shift, residual, "relu", block)),
        (out, map_step(out, x, planes, activation="silu")),
        (pooled, pool_step(pooled, x, Window((3, 3), (2, 2)), largest=True, block=block)),
    ]
    if block > 1:
        steps += [(out, reorder_step(out, x, block, to_planes)) for to_planes in (False, True)]
    same_on_threads(steps)


@pytest.mark.parametrize("shape", [(197, 192), (1, 1, 40003), (3, 5, 61, 33), (2, 20011)])
def test_pairs_rows_and_copies_give_the_same_bits_on_any_number_of_threads(shape):
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    scale = rng.standard_normal(shape[-1]).astype(np.float32)
    out, swapped, lengths = np.empty_like(x), np.empty_like(np.swapaxes(x, 0, -2)), np.empty(shape[:-1], np.float32)
    turned = np.empty_like(np.swapaxes(x, 0, -1))
    same_on_threads(
        [
            (out, pair_step(out, x, y, "Add", "silu")),
            (out, pair_step(out, x, scale, "Mul")),
            (out, pair_step(out, x[..., :1], y, "Sub")),
            (out, rows_step(out, x, "standard", epsilon=1e-5, scale=scale, shift=scale)),
            (out, rows_step(out, x, "softmax")),
            (lengths, rows_step(lengths, x, "length")),
            (swapped, copy_step(swapped, np.swapaxes(x, 0, -2))),
            (turned, copy_step(turned, np.swapaxes(x, 0, -1))),
        ]
    )


def test_a_negative_number_of_threads_is_refused():
    x = np.zeros((1, 2, 3, 4), np.float32)
    step = map_step(x, x, 2, activation="relu")
    step.on_threads(-1)
    with pytest.raises(NativeError, match="threads is -1"):
        step()
