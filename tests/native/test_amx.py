# SPDX-License-Identifier: Apache-2.0
"""FP32 on AMX: the emulated instructions are Intel's formulas, the row is as accurate as FP32 and keeps infinities where they belong,
plans take it where it is allowed, and a CPU without AMX says so. Guard pages and edges: native/test/check."""

import ctypes
import hashlib
import os
import shutil
import subprocess

import msgspec
import numpy as np
import pytest
from checkout import NATIVE
from native_library import native

import pysim
from pysim import planner
from pysim.cachemodel.cpu.cost import NEAR_BYTES
from pysim.errors import PysimError
from pysim.machine.load import load
from pysim.machine.quantity import Number
from pysim.problem.text import parse
from pysim.record.schedule import Schedule
from pysim.runtime import cpu, cpu_launch

ROW = "f32_tiles_32x32__amx"
NOTHING = Number(value=1e-6, kind="assumed", source="amx")
SOURCE = """
#define EMULATED
#include "x86/amx/tile_ops.h"
void bf16(tile *c, const tile *a, const tile *b) { emulate_bf16(c, a, b); }
void bytes(tile *c, const tile *a, const tile *b, int x, int y) { emulate_bytes(c, a, b, x, y); }
"""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("tiles")
    (folder / "tiles.c").write_text(SOURCE)
    flags = ["-O1", "-shared", "-fPIC", "-ffp-contract=off", "-I", NATIVE]
    subprocess.run([compiler, *flags, folder / "tiles.c", "-o", folder / "tiles.so", "-lm"], check=True)
    return ctypes.CDLL(os.fspath(folder / "tiles.so"))


def pointer(array):
    return array.ctypes.data_as(ctypes.c_void_p)


def bf16_values(bits):
    """The numbers of bf16 bits, subnormal ones as zeros."""
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    return np.where(np.abs(wide) < np.float32(2.0**-126), np.float32(0), wide).astype(np.float64)


def rounded(x):
    """FP32 of numbers that float64 holds exactly, subnormal ones as zeros."""
    single = x.astype(np.float32)
    return np.where(np.abs(single) < np.float32(2.0**-126), np.float32(0), single).astype(np.float64)


@pytest.mark.parametrize("exponent", [127, 64, 4], ids=["near 1", "subnormal products", "subnormal operands"])
def test_an_emulated_bf16_product_rounds_as_documented(emulated, exponent):
    """Chains of even and of odd k from 0, their sum, and the sum with c: each is exact in float64 here, and rounded once."""
    random = np.random.default_rng(exponent)
    shape = (16, 32)
    signs, exponents, rest = ((0, 2), (exponent - 4, exponent + 4), (0, 128))
    a, b = (
        sum(random.integers(*of, shape) << at for of, at in ((signs, 15), (exponents, 7), (rest, 0))).astype(np.uint16) for _ in range(2)
    )
    c = (random.standard_normal((16, 16)) * 2.0 ** (2 * exponent - 254)).astype(np.float32)
    got = c.copy()
    emulated.bf16(pointer(got), pointer(a), pointer(b))
    x, y, chains = bf16_values(a), bf16_values(b), np.zeros((2, 16, 16))
    for p in range(16):
        for q in range(2):
            chains[q] = rounded(chains[q] + np.outer(x[:, 2 * p + q], y[p, q::2]))
    want = rounded(rounded(c.astype(np.float64)) + rounded(chains[0] + chains[1])).astype(np.float32)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kinds", [(np.int8, np.int8), (np.int8, np.uint8), (np.uint8, np.int8)], ids=["ss", "su", "us"])
def test_an_emulated_product_of_bytes_is_that_of_integers(emulated, kinds):
    random = np.random.default_rng(1)
    a, b = (random.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, (16, 64)).astype(kind) for kind in kinds)
    c = random.integers(-(2**31), 2**31, (16, 16)).astype(np.int32)
    got = c.copy()
    emulated.bytes(pointer(got), pointer(a), pointer(b), *(int(kind is np.int8) for kind in kinds))
    of_b = b.astype(np.int64).reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
    np.testing.assert_array_equal(got, (c + a.astype(np.int64) @ of_b).astype(np.int32))


@pytest.fixture
def row_runs(monkeypatch):
    monkeypatch.setenv("PYSIM_EMULATED", "1")
    if ROW not in cpu.available_kernels():
        pytest.skip("this build does not emulate AMX (-Dtests=true does)")


def product(a, b, accuracy="strict"):
    problem = f"gemm:{a.shape[0]}x{b.shape[1]}x{a.shape[1]}"
    plan = planner.plan(problem, "emerald-rapids", accuracy=accuracy, algorithm="gemm", micro_kernel=ROW)
    return pysim.gemm(a, b, plan=plan)


@native
@pytest.mark.parametrize("octaves", [0, 30], ids=["of one size", "of 30 octaves"])
def test_sums_of_split_operands_are_at_least_as_accurate_as_fp32s(row_runs, octaves):
    random = np.random.default_rng(octaves)
    a, b = (
        (random.uniform(-1, 1, shape) * 2.0 ** random.integers(-octaves // 2, octaves // 2 + 1, shape)).astype(np.float32)
        for shape in ((40, 1000), (1000, 70))
    )
    exact, single = a.astype(np.float64) @ b, np.zeros((40, 70), np.float32)
    for p in range(1000):  # float64 holds a product of FP32, so this rounds as a multiply-add
        single = (single + np.outer(a[:, p].astype(np.float64), b[p])).astype(np.float32)
    assert np.abs(product(a, b) - exact).max() <= np.abs(single - exact).max()


@native
@pytest.mark.parametrize("layout", ["", ":nt"])
def test_neither_a_prepared_b_nor_threads_that_share_panels_change_a_bit(row_runs, layout):
    random, w = np.random.default_rng(4), parse(f"gemm:70x100x300{layout}")
    a, b = random.standard_normal((70, 300), dtype=np.float32), random.standard_normal((300, 100), dtype=np.float32)
    b = np.ascontiguousarray(b.T) if layout else b
    found = planner.plan(w, "emerald-rapids", accuracy="strict", algorithm="gemm", micro_kernel=ROW).schedule
    whole = msgspec.structs.replace(found, channels=128, k2=2, k3=2, stationary="input_stationary")
    prepared = msgspec.structs.replace(whole, algorithm="split_panels")
    want = cpu_launch.Prepared(w, b, whole)(a)
    np.testing.assert_allclose(want, a @ (b.T if layout else b), atol=1e-4)
    for schedule, threads in ((whole, 3), (prepared, 1), (prepared, 3)):
        np.testing.assert_array_equal(cpu_launch.Prepared(w, b, schedule, threads=threads)(a), want)


# The first 16 digits of SHA-256 of products of the emulation, by type and k of a set.
BITS = {
    ("f32", 500): "32a93e31e7c77eda", ("f32", 64): "8c88673ed0bdec28",
    ("bf16", 500): "0da416127131c3ff", ("bf16", 64): "0da416127131c3ff",
    ("s8", 500): "c94d2dacc22a6ec2", ("s8", 64): "c94d2dacc22a6ec2",
}  # fmt: skip


def operands_of(dtype):
    random = np.random.default_rng(7)
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((33, 500), (500, 65)))
    if dtype == "s8":
        return a, b
    a, b = (x.astype(np.float32) * 2.0 ** random.integers(-20, 20, x.shape).astype(np.float32) for x in (a, b))
    a, b = (x * (1 + random.integers(0, 2**23, x.shape).astype(np.float32) * np.float32(2.0**-23)) for x in (a, b))
    return (a, b) if dtype == "f32" else tuple((x.view(np.uint32) >> 16).astype(np.uint16).view(cpu.stored_dtype("bf16")) for x in (a, b))


@native
@pytest.mark.parametrize(("dtype", "channels"), BITS)
def test_the_bits_of_a_product_are_the_same_on_hardware_and_in_emulation(row_runs, dtype, channels):
    a, b = operands_of(dtype)
    schedule = Schedule(f"{dtype}_tiles_32x32__amx", "input_stationary", "tiles", 32, 32, channels, 2, 2)
    got = cpu_launch.Launch(parse(f"gemm:33x65x500:{dtype}"), schedule).run(a, b)
    if dtype == "s8":
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))
    assert hashlib.sha256(np.asarray(got).tobytes()).hexdigest()[:16] == BITS[dtype, channels]


@native
@pytest.mark.parametrize("stationary", ["input_stationary", "weight_stationary"])
@pytest.mark.parametrize(("dtype", "k"), [("bf16", 160), ("bf16", 170), ("s8", 320), ("s8", 330)])
def test_rows_that_are_read_in_place_give_the_bits_of_packed_ones(row_runs, dtype, k, stationary):
    """48 rows of whole blocks of k are read where they lie, others and those of a transposed A are packed."""
    random = np.random.default_rng(k)
    a, b = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((48, k), (k, 70)))
    if dtype == "bf16":
        a, b = ((x.astype(np.float32) / 7).view(np.uint32) >> 16 for x in (a, b))
        a, b = (x.astype(np.uint16).view(cpu.stored_dtype("bf16")) for x in (a, b))
    schedule = Schedule(f"{dtype}_tiles_32x32__amx", stationary, "tiles", 32, 32, 128, 2, 2)
    got = cpu_launch.Launch(parse(f"gemm:48x70x{k}:{dtype}"), schedule).run(a, b)
    turned = cpu_launch.Launch(parse(f"gemm:48x70x{k}:{dtype}:tn"), schedule).run(np.ascontiguousarray(a.T), b)
    np.testing.assert_array_equal(got, turned)
    if dtype == "s8":
        np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


@native
def test_what_is_not_finite_stays_where_fp32_has_it(row_runs):
    random = np.random.default_rng(3)
    a, b = random.uniform(-1, 1, (40, 100)).astype(np.float32), random.uniform(-1, 1, (100, 70)).astype(np.float32)
    a[3, 5], a[7, 99], b[40, 33], a[20, 0] = np.inf, np.nan, -np.inf, np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        want = (a[:, :, None].astype(np.float64) * b).sum(axis=1).astype(np.float32)
    np.testing.assert_allclose(product(a, b), want, rtol=1e-4, atol=1e-4)


@native
@pytest.mark.parametrize("exponent", [-120, -135, -147], ids=["parts subnormal", "operands subnormal", "few bits"])
def test_what_subnormal_numbers_lose_is_as_stated(row_runs, exponent):
    """2^-125 times the magnitudes of the other operand and 2^-126 a product, beyond FP32's error (docs/kernels.md)."""
    random = np.random.default_rng(5)
    a = np.ldexp(random.uniform(-1, 1, (40, 100)), exponent).astype(np.float32)
    b = random.uniform(-1, 1, (100, 70)).astype(np.float32) * np.float32(2.0**60)
    found, exact, magnitudes = product(a, b), a.astype(np.float64) @ b, np.abs(a).astype(np.float64) @ np.abs(b)
    stated = 2.0**-125 * np.abs(b).sum(axis=0, dtype=np.float64) + 100 * 2.0**-126
    assert (np.abs(found - exact) <= stated + 100 * 2.0**-24 * magnitudes).all()


def test_plans_take_split_operands_unless_ieee_or_the_same_bits_are_asked_for():
    kernels = {
        accuracy: planner.plan("gemm:1024x1024x1024", "emerald-rapids", accuracy=accuracy).kernel
        for accuracy in ("standard", "strict", "ieee", "reproducible")
    }
    assert kernels["standard"] == kernels["strict"] == ROW
    assert "tiles" not in kernels["ieee"] + kernels["reproducible"]
    assert planner.plan("gemm:1024x1024x1024", "zen4").kernel != ROW


def test_sums_of_tiles_are_stored_rarely():
    """512 x 512 x 512 took 1.14 ms in sets of 512 of k and 1.38 in sets of 128 (Emerald Rapids, lab/notebook/cpu-kernels.md)."""
    schedule = planner.plan("gemm:512x512x512", "emerald-rapids", accuracy="strict").schedule
    assert (schedule.kernel, schedule.channels) == (ROW, 512)


def test_longer_sets_which_err_more_than_mkl_are_not_taken():
    for prepared in (False, True):
        schedule = planner.plan("gemm:1024x1024x4096", "emerald-rapids", accuracy="strict", prepared=prepared).schedule
        assert (schedule.kernel, schedule.channels) == (ROW, 512)


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("s8", 1)])
def test_no_panel_is_fetched_beside_each_short_product(dtype, size):
    """512 x 512 x 512 of bf16 took 0.28 ms where panels of windows were fetched for each tile of filters, 0.23 where a set stays in L2
    (Emerald Rapids)."""
    for prepared in (False, True):
        schedule = planner.plan(f"gemm:512x512x512:{dtype}", "emerald-rapids", prepared=prepared).schedule
        assert schedule.channels == 512
        kept = schedule.k2 if schedule.stationary == "weight_stationary" else schedule.k3
        assert 1 < kept <= NEAR_BYTES / (schedule.windows * schedule.channels * size)


@pytest.mark.parametrize("stationary", ["weight_stationary", "input_stationary"])
def test_a_pass_fetches_again_only_what_the_pass_before_has_not_left_in_l2(stationary):
    machine = load("emerald-rapids")
    free = msgspec.structs.replace(machine.unit_of("amx").short_calls, page_cycles=NOTHING, page_walk_cycles=NOTHING)
    units = tuple(msgspec.structs.replace(one, short_calls=free if one.short_calls else None) for one in machine.core.units)
    machine = msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, units=units))

    def kernel_cycles(size: int, k2: int) -> float:
        name = (
            f"kernel=bf16_tiles_32x32__amx,stationary={stationary},pack=tiles,windows=32,filters=32,channels={size},k2={k2},k3={size // 32}"
        )
        return planner.plan(f"gemm:{size}x{size}x{size}:bf16", machine, name=f"gemm,{name}").cost.terms["kernel"]

    few, many = ([kernel_cycles(size, k2) for k2 in (1, 4)] for size in (512, 2048))  # all panels of an operand: 0.5 and 8 MiB
    assert few[0] == pytest.approx(few[1]) and many[0] > 1.1 * many[1]


@native
def test_a_cpu_without_amx_says_what_is_missing():
    if ROW in cpu.available_kernels():
        pytest.skip("this CPU has AMX")
    with pytest.raises(PysimError, match="amx"):
        product(np.ones((64, 64), np.float32), np.ones((64, 64), np.float32))
