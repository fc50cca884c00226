# SPDX-License-Identifier: Apache-2.0
"""Twice of any dimension of a problem is hardly ever predicted to take less time, on any machine and number of threads."""

import random

import msgspec
import pytest
import regret

from pysim import planner
from pysim.machine.load import load_any
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload

LESS = 0.04  # twice the filters may fill wider vectors: 8 filters of 80 channels, 7x7 on 8x8, 42.1 us, 16 of them 41.0 (zen5)
PROBLEMS, FLOPS = 60, (1e3, 2.5e8)
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 48, 64, 96, 100, 128, 200, 256, 300, 384, 512, 768, 1000, 1024, 1536, 2048)


def pairs(seed: int, count: int) -> list[tuple[Workload, Workload]]:
    """Random products and convolutions, each beside one of twice the size along one dimension."""
    of, found = random.Random(seed), list[tuple[Workload, Workload]]()
    while len(found) < count:
        if of.random() < 0.4:
            m, n, k = (of.choice(SIZES) for _ in range(3))
            w: Workload = Gemm(m=m, n=n, k=k, trans_a=of.random() < 0.3, trans_b=of.random() < 0.5, dtype=of.choice(("f32", "f64")))
            doubled = (of.choice("mnk"),)
        else:
            w = regret.drawn(of.choice(regret.KINDS), of)
            doubled = of.choice((("batch",), ("height", "width"), *((("channels",), ("filters",)) if w.groups == 1 else ())))
        if FLOPS[0] <= w.flops <= FLOPS[1]:
            found.append((w, msgspec.structs.replace(w, **{name: 2 * getattr(w, name) for name in doubled})))
    return found


@pytest.mark.parametrize(("machine", "threads", "seed"), [("zen4", 1, 1), ("zen5", 1, 2), ("emerald-rapids", 1, 3), ("zen5", 2, 4)])
def test_twice_the_work_is_predicted_to_take_no_less_time(machine: str, threads: int, seed: int) -> None:
    on = load_any(machine)
    for small, large in pairs(seed, PROBLEMS // threads**2):
        first, second = (planner.plan(w, on, threads=threads).seconds for w in (small, large))
        assert second >= (1 - LESS) * first, (small.text, large.text, first, second)


@pytest.mark.parametrize("text", ["1x8x2048", "2x24x300:f64", "3x16x1000"])
def test_rows_of_an_a_in_place_are_no_more_than_there_are(text: str) -> None:
    """Waits for lines of a whole tile's rows made a product of one row of A slower than that of two."""
    first, _, rest = text.partition("x")
    one, two = (planner.plan(f"gemm:{m}x{rest}", "zen4", algorithm="unpacked").seconds for m in (int(first), 2 * int(first)))
    assert two >= 0.97 * one
