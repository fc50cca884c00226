# SPDX-License-Identifier: Apache-2.0
"""What packing pays for rows of a few windows, and for taps that are packed one by one."""

import pytest

from pysim.cachemodel.cpu.incore import Rates, rates
from pysim.cachemodel.cpu.nest import nest_of, segments
from pysim.machine import load as machine
from pysim.problem.text import parse
from pysim.registry.cpu import cpu_kernel

ZEN4 = machine.load("zen4")


def rates_of(text: str, name: str) -> Rates:
    return rates(nest_of(parse(text)), ZEN4, [cpu_kernel(name)])


@pytest.mark.parametrize(("name", "lanes", "times"), [("f32_win_16x6__avx2", 8, 2.0), ("f32_win_32x14__avx512", 16, 1.5)])
def test_packing_rows_of_a_few_windows_costs_more_a_vector(name: str, lanes: int, times: float) -> None:
    def pack(text: str) -> float:
        nest = nest_of(parse(text))
        return float(rates_of(text, name).pack[0]) / segments(nest.windows, nest.out_w, cpu_kernel(name).windows, lanes)[1]

    assert pack("conv:ic64ih64iw3oc16kh1kw3pw1") > times * pack("conv:ic64ih64iw16oc16kh1kw3pw1")


def test_taps_further_apart_than_a_vector_have_masks_of_their_own() -> None:
    def setup(taps: int) -> float:
        return float(rates_of(f"conv:ic64ih1iw2000oc16kh1kw{taps}", "f32_win_32x14__avx512").pack_setup[0])

    assert setup(18) > 10 * setup(17)
