# SPDX-License-Identifier: Apache-2.0
"""SConv's slicing analysis: the worked table of its equations, the rule that shapes imply, and the two searches."""

import itertools
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pysim import planner
from pysim.cachemodel.cpu import csa
from pysim.cachemodel.cpu.nest import Nest, nest_of
from pysim.explain.text import explain
from pysim.machine import load as machine
from pysim.machine.cpu import Csa
from pysim.problem.text import parse

LAYER = "conv:mb1ic64ih56oc64kh3ph1"
RESNET_AND_VGG = [
    "conv:ic3ih224oc64kh7sh2ph3",
    "conv:ic64ih56oc64kh3ph1",
    "conv:ic128ih28oc128kh3ph1",
    "conv:ic256ih14oc256kh3ph1",
    "conv:ic512ih7oc512kh3ph1",
    "conv:ic64ih56oc256kh1",
    "conv:ic256ih56oc128kh1",
    "conv:ic1024ih14oc256kh1",
    "conv:ic64ih224oc64kh3ph1",
    "conv:ic128ih112oc128kh3ph1",
    "conv:ic256ih56oc256kh3ph1",
    "conv:ic256ih28oc512kh3ph1",
    "conv:ic512ih28oc512kh3ph1",
    "conv:ic512ih14oc512kh3ph1",
]
PAPER_CACHES = {"l1_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 4 << 20}


def with_numbers(model: Csa, **changed: Any) -> Csa:
    """A machine's numbers for the analysis, some of them others; latencies as plain cycles."""
    latencies = {name for name in changed if name.endswith("_cycles")}
    numbers = {name: msgspec.structs.replace(getattr(model, name), value=changed[name]) for name in latencies}
    return msgspec.structs.replace(model, **{**changed, **numbers})


def x86(windows: int, filters: int, **changed: object) -> Csa:
    """The x86 machine of the worked table: 64-byte lines, latencies 14/50/200."""
    latencies = {"l2_latency_cycles": 14, "l3_latency_cycles": 50, "memory_latency_cycles": 200}
    numbers = {"windows": windows, "filters": filters, "line_bytes": 64, "alpha": 0.9, **latencies, **PAPER_CACHES, **changed}
    return with_numbers(power10(), **numbers)


def power10() -> Csa:
    model = machine.load("power10-e1050").csa
    assert model is not None
    return model


def test_power10_reproduces_the_worked_table_to_the_integer() -> None:
    inputs, weights = csa.schedules(nest_of(parse(LAYER)), power10())
    assert csa.budgets(power10()) == (29_491, 943_718, 3_774_873)
    assert (inputs.channels, inputs.k2, inputs.k3) == (32, 8, 98)
    assert msgspec.to_builtins(inputs.cost) == {"cold": 57_600, "extra": 0, "l3": 0, "l2": 224_640, "cost": 19_526_400}
    assert (weights.channels, weights.k2, weights.k3) == (32, 49, 8)
    assert msgspec.to_builtins(weights.cost) == {"cold": 57_600, "extra": 0, "l3": 3_456, "l2": 395_136, "cost": 21_335_040}
    assert csa.ranked((inputs, weights))[0] is inputs
    assert (inputs.channel_sets, inputs.window_tiles, inputs.filter_tiles) == (2, 196, 8)


def test_output_tiles_have_the_bytes_of_results() -> None:
    sizes = [csa.tile_bytes(nest_of(parse(f"{LAYER}:{dtype}")), power10(), 32) for dtype in ("f32", "bf16", "s8")]
    assert [inputs for inputs, _, _ in sizes] == [16 * 288 * 4, 16 * 288 * 2, 16 * 288]
    assert [out for _, _, out in sizes] == [16 * 8 * 4] * 3


@pytest.mark.parametrize(
    ("shape", "channels", "inputs", "weights", "winner"),
    [
        ((16, 4), 32, (16, 98, 29_329_920), (49, 16, 47_093_760), "input_stationary"),
        ((4, 16), 32, (4, 392, 48_296_448), (98, 4, 28_588_032), "weight_stationary"),
        ((16, 16), 16, (4, 196, 29_329_920), (49, 4, 28_127_232), "weight_stationary"),
    ],
)
def test_x86_reproduces_the_worked_table_to_the_integer(
    shape: tuple[int, int], channels: int, inputs: tuple[int, int, int], weights: tuple[int, int, int], winner: str
) -> None:
    both = csa.schedules(nest_of(parse(LAYER)), x86(*shape))
    assert [choice.channels for choice in both] == [channels, channels]
    assert [(choice.k2, choice.k3, choice.cost.cost) for choice in both] == [inputs, weights]
    assert csa.ranked(both)[0].stationary == winner


def test_tiles_that_outgrow_the_caches_are_charged_as_equations_9_to_14_say() -> None:
    # |I_T|, |F_T|, |O_T| = 256, 128, 512 bytes; n_I = 4, n_F = 8; K2 = 2 fits 1,536 of 2,000 bytes, K3 = 2 fits 2,816 of 3,000
    caches = {"l1_bytes": 1000, "l2_bytes": 2000, "l3_bytes": 3000, "alpha": 1.0}
    p = x86(16, 8, l2_latency_cycles=1, l3_latency_cycles=10, memory_latency_cycles=100, **caches)
    choice = csa.schedule(nest_of(parse("gemm:64x64x4")), p, "input_stationary")
    assert (choice.channels, choice.k2, choice.k3) == (4, 2, 2)
    assert msgspec.to_builtins(choice.cost) == {"cold": 32, "extra": 16, "l3": 48, "l2": 48, "cost": 5_328}


def sweep(shape: tuple[int, int]) -> Counter[str]:
    """Winners over 14 layers x 384 machines: four latencies of each kind, two line sizes, three shares of the caches."""
    nests = [nest_of(parse(layer)) for layer in RESNET_AND_VGG]
    machines = [
        x86(*shape, l2_latency_cycles=c2, l3_latency_cycles=c3, memory_latency_cycles=cm, line_bytes=line, alpha=alpha)
        for c2, c3, cm, line, alpha in itertools.product(
            (5, 10, 14, 20), (30, 40, 50, 70), (150, 200, 300, 400), (64, 128), (0.5, 0.75, 0.9)
        )
    ]
    return Counter(csa.ranked(csa.schedules(nest, p))[0].stationary for p in machines for nest in nests)


@pytest.mark.parametrize(
    ("shape", "winner"), [((16, 8), "input_stationary"), ((16, 4), "input_stationary"), ((4, 16), "weight_stationary")]
)
def test_the_longer_side_of_the_micro_kernel_decides_on_every_layer_and_machine(shape: tuple[int, int], winner: str) -> None:
    assert sweep(shape) == {winner: 14 * 384}


def test_a_square_micro_kernel_wins_with_either_schedule_somewhere() -> None:
    assert len(sweep((16, 16))) == 2


def test_equal_cost_goes_to_weight_stationary() -> None:
    square = nest_of(parse("gemm:64x64x64"))
    inputs, weights = csa.schedules(square, x86(8, 8))
    assert inputs.cost == weights.cost
    assert csa.ranked((inputs, weights))[0] is weights


def test_raw_footprint_counts_the_padded_input_once_where_memory_supplies_it() -> None:
    nest = nest_of(parse(LAYER))
    packed, raw = (csa.schedule(nest, power10(), "input_stationary", footprint=kind) for kind in ("packed", "raw"))
    assert packed.cost.cold - raw.cost.cold == 56_448 - 64 * 58 * 58 * 4 // 128
    assert (raw.channels, raw.k2, raw.k3, raw.cost.l2) == (packed.channels, packed.k2, packed.k3, packed.cost.l2)


def test_every_image_and_group_costs_one_nest() -> None:
    one = csa.schedule(nest_of(parse("conv:ic16ih20oc24kh3ph1")), power10(), "weight_stationary")
    many = csa.schedule(nest_of(parse("conv:mb3g2ic32ih20oc48kh3ph1")), power10(), "weight_stationary")
    assert many.cost.cost == 6 * one.cost.cost
    assert (many.channels, many.k2, many.k3) == (one.channels, one.k2, one.k3)


def test_latencies_that_are_no_whole_numbers_round_the_cost_up() -> None:
    nest = nest_of(parse(LAYER))
    whole, more = (
        csa.schedule(nest, x86(16, 8), "input_stationary"),
        csa.schedule(nest, x86(16, 8, l2_latency_cycles=14.1), "input_stationary"),
    )
    assert more.cost.cost == whole.cost.cost + -(-whole.cost.l2 // 10)


sizes = st.integers(1, 300)
nests = st.builds(
    lambda channels, side, filters, kernel: nest_of(parse(f"conv:ic{channels}ih{side}oc{filters}kh{kernel}ph{kernel // 2}")),
    sizes, st.integers(7, 60), sizes, st.sampled_from((1, 3, 5, 7)),
)  # fmt: skip
shapes = st.sampled_from(((16, 8), (16, 4), (4, 16), (32, 14), (14, 32)))
kinds = st.sampled_from(("input_stationary", "weight_stationary"))


def bounds(nest: Nest, p: Csa, c: csa.Choice) -> tuple[bool, bool, bool]:
    """Whether equations 2, 4 and 5 hold for a choice."""
    inputs, filters, out = csa.tile_bytes(nest, p, c.channels)
    kept, streamed = (inputs, filters) if c.stationary == "input_stationary" else (filters, inputs)
    l1, l2, l3 = csa.budgets(p)
    return (
        inputs + filters + out <= l1,
        kept + c.k2 * (streamed + out) <= l2,
        c.k3 * kept + c.k2 * streamed + c.k2 * c.k3 * out <= l3,
    )


@settings(max_examples=150, deadline=None)
@given(nests, shapes, kinds)
def test_exact_maxima_fit_and_one_more_does_not(nest: Nest, shape: tuple[int, int], kind: str) -> None:
    p = x86(*shape)
    c = csa.schedule(nest, p, kind, "exact")
    streamed, kept = (c.filter_tiles, c.window_tiles) if kind == "input_stationary" else (c.window_tiles, c.filter_tiles)
    for index, (field, most) in enumerate((("channels", nest.group_channels), ("k2", streamed), ("k3", kept))):
        value = getattr(c, field)
        assert bounds(nest, p, c)[index] or value == 1
        assert value == most or not bounds(nest, p, c._replace(**{field: value + 1}))[index]


@settings(max_examples=150, deadline=None)
@given(nests, shapes, kinds)
def test_halving_fits_and_is_at_most_the_exact_maximum(nest: Nest, shape: tuple[int, int], kind: str) -> None:
    p = x86(*shape)
    halved, most = (csa.schedule(nest, p, kind, search) for search in ("halving", "exact"))
    assert halved.channels <= most.channels < max(2, 2 * halved.channels + 2)
    for held, value in zip(bounds(nest, p, halved), (halved.channels, halved.k2, halved.k3), strict=True):
        assert held or value == 1


def test_a_plan_of_a_shape_that_no_row_has_is_explained() -> None:
    zen4 = machine.load("zen4")
    assert zen4.csa
    on = msgspec.structs.replace(zen4, csa=msgspec.structs.replace(zen4.csa, windows=5, filters=11))
    plan = planner.plan(LAYER, on, model="csa")
    assert plan.kernel == "f32_5x11"
    assert "f32_5x11 on 5 windows x 11 filters" in explain(plan)


@pytest.mark.parametrize("problem", ["conv:mb1ic64ih56oc64kh3ph1", "gemm:1x4096x4096"])
def test_the_slicing_analysis_turns_every_other_algorithm_down_once_and_compares_with_none(problem: str) -> None:
    rejected = planner.plan(problem, "zen4", "csa").rejected
    assert {one.code for one in rejected} <= {"shape", "type", "machine"}
    assert len({one.what for one in rejected}) == len(rejected)
