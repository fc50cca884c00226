# SPDX-License-Identifier: Apache-2.0
"""Accuracy reproducible: plans that keep a layer's contract give the same bits on any CPU, for any tiles, threads and batch.

PYSIM_LAYERS=2000 tries so many random layers.
"""

import os

import msgspec
import numpy as np
import pytest
from command_line import cache, own_files  # noqa: F401
from emulation import NAME, built_worker, emulation  # noqa: F401
from native_library import native, native_is_missing

import pysim
from pysim import planner
from pysim.algorithms.reproducible import contract_of
from pysim.errors import OperandError, PlanError
from pysim.explain.text import explain
from pysim.machine.load import load_any
from pysim.problem.conv import Conv
from pysim.problem.text import Workload, parse
from pysim.runtime import emulated
from pysim.runtime.cpu_launch import Prepared

LAYERS = int(os.environ.get("PYSIM_LAYERS", "20"))
HALVES = "gemm,kernel=f32_win_16x6__avx2,stationary=input_stationary,pack=tiles,windows=16,filters=6,channels=350,k2=1,k3=1"
ZEN = load_any("zen4")
TARGETS = frozenset({"portable"}) if native_is_missing() else emulated._local_targets()


def machine_with(*targets):
    units = tuple(unit for unit in ZEN.core.units if unit.target in targets)
    return msgspec.structs.replace(ZEN, core=msgspec.structs.replace(ZEN.core, units=units))


MACHINES = [machine_with(target) for target in ("portable", "avx2", "avx512") if target in TARGETS]


def random_layer(seed: int) -> Workload:
    rng = np.random.default_rng(seed)

    def one(*of):
        return int(rng.choice(of))

    dtype = ":f64" * one(0, 0, 0, 1)
    if one(0, 1, 1) == 0:
        m, n, k = one(1, 2, 5, 17, 64), one(1, 7, 16, 40, 130), one(1, 3, 64, 100, 1100, 2500)
        return parse(f"gemm:{m}x{n}x{k}{':nt' * one(0, 1)}{dtype}")
    if one(0, 0, 0, 0, 0, 1):  # of volumes
        kernel, sizes = one(1, 2, 3), f"ih{one(5, 8)}iw{one(6, 17)}id{one(4, 7)}kd{one(1, 3)}sd{one(1, 2)}pd{one(0, 1)}"
        return parse(
            f"conv:mb{one(1, 2)}ic{one(3, 16, 40)}oc{one(5, 16, 33)}{sizes}kh{kernel}kw{kernel}sh{one(1, 2)}ph{kernel // 2}{dtype}"
        )
    kernel, groups = one(1, 1, 3, 3, 3, 5, 7), one(1, 1, 1, 4, 16, 33)
    channels, filters = (groups, groups * one(1, 2)) if groups > 1 else (one(3, 8, 16, 17, 32, 64, 130), one(5, 16, 32, 33, 64))
    sizes = f"ih{one(7, 9, 14, 23)}iw{one(7, 12, 28)}kh{kernel}kw{kernel}sh{one(1, 1, 2)}ph{one(0, kernel // 2)}"
    return parse(f"conv:g{groups}mb{one(1, 2, 3)}ic{channels}oc{filters}{sizes}{dtype}")


def operands(problem: Workload):
    rng, dtype = np.random.default_rng(1), np.float64 if problem.dtype == "f64" else np.float32
    if isinstance(problem, Conv):
        shapes = problem.input_shape, problem.filter_shape, (problem.filters,)
    else:
        b = (problem.n, problem.k) if problem.trans_b else (problem.k, problem.n)
        shapes = (problem.m, problem.k), b, (problem.n,)
    return [rng.uniform(-1, 1, shape).astype(dtype) for shape in shapes]


def activation_of(problem: Workload):
    """Any, but of the shape alone; of f64 one without exponentials."""
    return "relu" if problem.dtype == "f64" else ("relu", "gelu", "silu", "tanh", "exp", "mish", ("elu", 1.0, 1.0))[problem.filters % 7]


def result(problem: Workload, plan, x, w, bias):
    threads = plan.threads
    if isinstance(problem, Conv) and problem.is_volume:
        return Prepared.of(plan, w, bias, activation_of(problem), threads)(x)
    if isinstance(problem, Conv):
        windows = {"padding": (problem.pad_top, problem.pad_left), "stride": (problem.stride_h, problem.stride_w), "groups": problem.groups}
        return pysim.conv2d(x, w, bias, activation=activation_of(problem), plan=plan, threads=threads, **windows)
    return pysim.gemm(x, w, bias=bias, trans_b=problem.trans_b, plan=plan, threads=threads)


def first_image(problem: Workload) -> Workload:
    return msgspec.structs.replace(problem, **({"batch": 1} if isinstance(problem, Conv) else {"m": 1}))


def differing(problem: Workload, plans) -> list[str]:
    """The plans whose results differ from the first one's."""
    x, w, bias = operands(problem)
    first, *others = (result(problem, plan, x, w, bias) for plan in plans)
    return [plan.name for plan, y in zip(plans[1:], others, strict=True) if y.tobytes() != first.tobytes()]


def plans_of(problem: Workload, seed: int):
    """Of each machine the best plan for one and two threads, and any other that keeps the contract."""
    for on in MACHINES:
        yield planner.plan(problem, on, accuracy="reproducible", threads=2)
        ranked = planner.plans(problem, on, top=50, accuracy="reproducible")
        yield from [ranked[0], ranked[seed % len(ranked)]]


@native
@pytest.mark.parametrize("first", range(0, LAYERS, 10))
def test_all_plans_that_keep_a_contract_give_the_same_bits(first):
    for seed in range(first, first + 10):
        problem = random_layer(seed)
        plans = [*plans_of(problem, seed)]
        assert {plan.contract for plan in plans} == {contract_of(problem)}
        assert not differing(problem, plans), problem.text
        x, w, bias = operands(problem)
        alone = planner.plan(first_image(problem), MACHINES[-1], accuracy="reproducible")
        assert result(alone.workload, alone, x[:1], w, bias).tobytes() == result(problem, plans[0], x, w, bias)[:1].tobytes()


EDGES = ["conv:ic20ih9oc12kh3sh2ph1", "conv:ic17ih6oc19kh3ph1", "gemm:37x20x75", "gemm:5x3x1100", "gemm:9x7x61:f64"]


@native
@emulation
@pytest.mark.usefixtures("own_files", "built_worker")
@pytest.mark.timeout(1000)  # the first waits for the build
@pytest.mark.parametrize("text", EDGES)
def test_power10_has_the_bits_of_this_cpu_at_edges_too(text):
    problem = parse(text)
    mine, theirs = planner.plan(text, MACHINES[-1], accuracy="reproducible"), planner.plan(text, NAME, accuracy="reproducible")
    assert mine.contract == theirs.contract
    assert not differing(problem, [mine, theirs])
    outer = planner.plan(text, NAME, micro_kernel=f"{problem.dtype}_outer_{8 if problem.dtype == 'f64' else 16}x8__mma")
    assert outer.contract is None and differing(problem, [mine, outer]) == [outer.name]


@native
@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("conv:ic64ih14oc32kh3sh2ph1", {"algorithm": "blocked"}),  # by blocks of channels
        ("conv:ic64ih14oc64kh3ph1", {"algorithm": "sconv"}),  # a chain where the contract is Winograd's
        ("conv:g16ic16ih14oc16kh5ph2", {"micro_kernel": "f32_rows_64x1__portable"}),  # multiply-adds that round twice
        ("gemm:40x40x700:nt", {"name": HALVES}),
    ],
)  # fmt: skip
def test_a_plan_of_another_order_is_caught(text, terms):
    planted = planner.plan(text, machine_with(*TARGETS), **terms)
    assert planted.contract != contract_of(planted.workload)
    assert differing(planted.workload, [planner.plan(text, MACHINES[0], accuracy="reproducible"), planted]) == [planted.name]
    if "name" not in terms:
        with pytest.raises(PlanError, match=r"accuracy reproducible takes|no kernel"):
            planner.plan(text, machine_with(*TARGETS), accuracy="reproducible", **terms)


@pytest.mark.parametrize(
    "text", ["conv:mb{}ic64ih56oc64kh3ph1", "conv:mb{}ic512ih7oc512kh1", "conv:mb{}g32ic32ih9oc32kh5ph2", "gemm:{}x64x5000"]
)
def test_a_contract_is_a_function_of_the_layer_alone(text):
    machines = ("zen4", "granite-rapids", "xeon-4208", "zen5")
    kept = {planner.plan(text.format(batch), on, accuracy="reproducible").contract for batch in (1, 7, 64) for on in machines}
    assert kept == {contract_of(parse(text.format(3)))}


@pytest.mark.parametrize(
    ("text", "machine", "reason"),
    [
        ("gemm:64x64x64:bf16", "zen4", "sums of bf16 have no contract; accuracy reproducible takes f32, f64 and s8"),
    ],
)
def test_what_no_contract_covers_is_refused(text, machine, reason):
    with pytest.raises(PlanError, match=reason):
        planner.plan(text, machine, accuracy="reproducible")


def test_a_plan_says_its_contract_and_what_it_costs():
    plan = planner.plan("conv:ic64ih56oc64kh3sh2ph1", "zen4", accuracy="reproducible")
    assert plan.to_dict()["contract"] == "chain, 64 channels"
    assert "contract chain, 64 channels: plans with the same one give the same bits; 1." in explain(plan)


@native
def test_an_activation_whose_bits_are_the_c_librarys_is_refused():
    x, w, _ = operands(parse("conv:ic4ih5oc4kh1:f64"))
    with pytest.raises(OperandError, match=r"the bits of .gelu. of f64 are the C library's; accuracy reproducible takes identity, relu"):
        pysim.conv2d(x, w, activation="gelu", accuracy="reproducible")
    pysim.conv2d(x, w, activation=("clamp", 0.0, 6.0), accuracy="reproducible")
