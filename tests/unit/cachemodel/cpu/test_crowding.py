# SPDX-License-Identifier: Apache-2.0
"""What others bring into a shared level pushes out lines of a run that takes long, and none of one that is fast or fits inside."""

import msgspec
import numpy as np
import pytest

from pysim import planner
from pysim.cachemodel.cpu.reuse.loops import Extent, Loop, LoopNest, Operand
from pysim.machine.cpu import Machine
from pysim.machine.load import load

ZEN3, MIB = load("zen3"), 1 << 20


def alone(machine: Machine) -> Machine:
    last = msgspec.structs.replace(machine.levels[-1], others_bytes_per_cycle=None)
    return msgspec.structs.replace(machine, levels=(*machine.levels[:-1], last))


def read_again(mib: float) -> LoopNest:
    """A run that reads so much once."""
    size = mib * MIB
    return LoopNest([Loop("rows", "rows", 1, 64)], [Operand("input", {"rows": Extent(size / 64, size)}, "rows")], {"rows": 64}, 1)


@pytest.mark.parametrize(("mib", "bytes_per_cycle"), [(14.5, 17), (11.5, 4.7), (9.6, 2.7), (6.7, 1.25), (3.1, 0.63)])
def test_a_core_keeps_what_was_measured_at_each_pace(mib: float, bytes_per_cycle: float) -> None:
    """Half of the lines of these sizes were lost on that machine; of 0.6 and 1.6 times as much few and most."""
    for of, least, most in ((0.6, 0.0, 0.4), (1.6, 0.6, 1.0)):
        size = of * mib * MIB
        missed = read_again(of * mib).misses(ZEN3.levels, "hot", np.array([size / bytes_per_cycle]))
        assert least <= missed[-1].sum() / size <= most, of
    fast, slow = (read_again(mib).misses(alone(ZEN3).levels, "hot", np.array([cycles])) for cycles in (0.0, 1e12))
    assert np.array_equal(fast, slow)


def test_filters_that_others_push_out_make_a_plan_dearer_and_what_l2_holds_does_not() -> None:
    large, small = ("conv:mb1ic256ih14oc256kh3ph1", "conv:mb1ic16ih14oc16kh3ph1")
    for text, dearer in ((large, True), (small, False)):
        name = planner.plan(text, alone(ZEN3)).name
        beside, free = (planner.plan(text, on, name=name).seconds for on in (ZEN3, alone(ZEN3)))
        assert beside is not None and free is not None
        assert beside > 1.1 * free if dearer else beside == free


def test_a_product_of_a_nest_ages_as_well() -> None:
    """9 MiB of filters, 256 rows: they are kept alone, and lost beside others."""
    nest = "gemm:256x1536x1536"
    name = planner.plan(nest, alone(ZEN3), accuracy="ieee").name
    beside, free = (planner.plan(nest, on, name=name, accuracy="ieee").seconds for on in (ZEN3, alone(ZEN3)))
    assert beside is not None and free is not None and beside > free
