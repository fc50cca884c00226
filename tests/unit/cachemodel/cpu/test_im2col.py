# SPDX-License-Identifier: Apache-2.0
"""The cost of im2col: its elements and vectors counted by hand, its lines those of exact simulation."""

import im2col_baseline
import msgspec
import pytest
from im2col_baseline import columns_cost
from problems import conv

from pysim import planner
from pysim.algorithms.cpu.im2col import MASK_CYCLES, SEGMENT_CYCLES, columns_pass, copy_cycles
from pysim.cachemodel.cpu.cost import cost_from, predict_schedule
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Hierarchy
from pysim.machine.load import load

ON = load("xeon-4208").contiguous()


def test_the_worked_number_holds() -> None:
    cost = columns_cost(conv("conv:mb1ic64ih56oc64kh3ph1"), ON)
    assert cost.terms["copy"] == 64 * 9 * 56 * 4 * 1.5 == 193_536
    assert columns_cost(conv("conv:mb1ic64ih56oc64kh3ph1"), ON, by_element=True).terms["copy"] == 64 * 9 * 56 * 56
    assert columns_cost(conv("conv:mb3ic64ih56oc64kh3ph1"), ON).terms["copy"] == 3 * cost.terms["copy"]


def test_columns_that_packing_writes_cost_its_calls_too() -> None:
    w, core = conv("conv:mb1ic16ih14oc16kh3ph1"), ON.core
    own, packed = columns_cost(w, ON), cost_from([columns_pass(w, ON, "hot", ON.unit_of("avx512"))])
    lines = own.levels["L2"]["input_bytes"] / 64
    call = core.pack_call_cycles.value + SEGMENT_CYCLES
    more = 16 * 9 * 14 * core.pack_cycles.value + 16 * 3 * 14 * call + lines * core.pack_line_cycles.value
    assert packed.terms["copy"] == pytest.approx(own.terms["copy"] + more)


def test_taps_with_masks_of_their_own_take_longer() -> None:
    near, far = conv("conv:mb1ic16ih14oc16kh3ph1"), conv("conv:mb1ic16ih14oc16kh3ph2dh1")
    cycles = [copy_cycles(w, ON, ON.unit_of("avx512")) for w in (near, far)]
    assert near.windows == far.windows and cycles[1] - cycles[0] == pytest.approx(16 * 9 * 14 * MASK_CYCLES)


@pytest.mark.parametrize("problem", ["conv:mb1ic64ih56oc64kh3ph1", "conv:mb1ic64ih224oc64kh3ph1"])
def test_terms_less_what_is_hidden_add_up(problem: str) -> None:
    cost = columns_cost(conv(problem), ON)
    assert sum(cost.counted.values()) == pytest.approx(cost.cycles)


def test_a_pointwise_convolution_needs_no_columns() -> None:
    assert columns_cost(conv("conv:mb1ic64ih56oc64kh1"), ON).cycles == 0
    assert columns_cost(conv("conv:mb1ic64ih56oc64kh1sh2"), ON).cycles > 0


@pytest.mark.parametrize(
    ("problem", "sizes"),
    [
        ("conv:mb1ic64ih56oc64kh3ph1", "stationary=weight_stationary,pack=none,windows=32,filters=14,channels=576,k2=5,k3=5"),
        ("conv:mb1ic128ih28oc128kh3ph1", "stationary=input_stationary,pack=none,windows=32,filters=14,channels=1152,k2=10,k3=25"),
        ("conv:mb1ic3ih224oc64kh7sh2ph3", "stationary=weight_stationary,pack=none,windows=32,filters=14,channels=147,k2=17,k3=5"),
    ],
)
def test_lines_of_im2col_and_the_product_are_those_of_simulation(problem: str, sizes: str) -> None:
    w = conv(problem)
    product = planner.plan(im2col_baseline.product_of(w), ON, name=f"gemm,kernel=f32_win_32x14__avx512,{sizes}")
    after = predict_schedule(msgspec.structs.replace(nest_of(product.workload), fresh_input=True), ON, product.schedule)
    cost = columns_cost(w, ON)
    counted = im2col_baseline.simulate(w, product.schedule, Hierarchy.from_machine(ON), warm=True)
    alone = trace.simulate(product.workload, product.schedule, Hierarchy.from_machine(ON), warm=True)
    for level, supplier in zip(("L1", "L2", "L3"), ("L2", "L3", "memory"), strict=True):
        predicted = cost.levels[supplier]["lines"] + after.levels[supplier]["lines"]
        assert predicted == pytest.approx(counted[level].misses + counted[level].writebacks, rel=0.2)
        assert product.cost.levels[supplier]["lines"] == pytest.approx(alone[level].misses + alone[level].writebacks, rel=0.2)


def test_columns_that_leave_the_caches_are_written_to_memory_once() -> None:
    cost = columns_cost(conv("conv:mb1ic64ih224oc64kh3ph1"), ON)
    assert cost.levels["memory"]["writeback_lines"] == 64 * 9 * 224 * 224 * 4 / 64
    assert cost.bound_by == "memory"
    small = columns_cost(conv("conv:mb1ic16ih14oc16kh3ph1"), ON)
    assert small.levels["memory"]["lines"] == 0 < small.levels["L2"]["lines"]
