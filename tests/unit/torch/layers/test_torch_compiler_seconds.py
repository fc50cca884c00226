# SPDX-License-Identifier: Apache-2.0
"""What layers are expected to take beside PyTorch's compiler."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from pysim import planner
from pysim.machine.load import load_any
from pysim.problem.text import parse
from pysim.torch.layers.compiler_seconds import NORM_CYCLES, compiler_seconds, fused_seconds, joined_seconds, library_seconds, own_seconds

H200 = load_any("h200")


def test_a_kernel_takes_longer_with_an_activation_but_not_with_bounds():
    plan = planner.plan(parse("gemm:3152x1536x384:nt:f16"), H200)
    assert (
        own_seconds(plan, H200, False)
        == own_seconds(plan, H200, False, activation="relu")
        == own_seconds(plan, H200, False, activation=("clamp", 0, 6))
    )
    assert all(own_seconds(plan, H200, False) < own_seconds(plan, H200, False, activation=one) for one in ("silu", "gelu"))


def test_the_library_pads_channels_and_filters_that_fill_no_vectors():
    odd, filters, whole = (library_seconds(parse(f"conv:mb16ic{c}ih56oc{f}kh3ph1:f16"), H200) for c, f in ((18, 18), (24, 18), (24, 24)))
    assert whole + 4e-6 < filters and filters + 4e-6 < odd


def test_the_librarys_groups_take_as_long_as_a_tile_of_channels():
    """Of as many products: few channels a group waste most of a tile."""
    few, many = (library_seconds(parse(f"conv:g{g}mb16ic{c}ih28oc{c}kh3ph1:f16"), H200) for g, c in ((32, 256), (2, 64)))
    assert few > 1.5 * many


def test_interleaving_in_a_concatenation_is_no_pass_at_the_speed_of_memory():
    problem = parse("conv:mb16ic192ih48oc384kh2ph1:f16")
    assert joined_seconds(problem, H200, 14155776) > 5 * fused_seconds(14155776, 4 * 14155776, H200)


@pytest.mark.parametrize("dtype", ["f16", "tf32"])
def test_few_tiles_of_an_image_leave_multiprocessors_idle(dtype):
    seconds = [
        compiler_seconds(parse(f"conv:mb{batch}ic3ih224oc384kh16sh16:{dtype}"), H200, False, False, False) for batch in (1, 2, 64, 128)
    ]
    assert seconds[1] < 1.1 * seconds[0] and seconds[3] > 1.8 * seconds[2]


def test_a_few_filters_take_as_long_as_a_tile_of_them():
    seconds = [compiler_seconds(parse(f"conv:mb16ic64ih192oc{filters}kh3ph1:f16"), H200, False, False, False) for filters in (3, 64)]
    assert seconds[0] > 0.7 * seconds[1]


def test_a_norm_between_kernels_is_a_pass_of_its_own():
    layer = parse("conv:mb16ic64ih56oc256kh1:f16")
    bare, fused, apart = (compiler_seconds(layer, H200, *how) for how in ((False, False, False), (True, False, True), (True, False, False)))
    elements = layer.output_elements
    assert bare == fused and apart - bare == pytest.approx(fused_seconds(elements, 4 * elements, H200, NORM_CYCLES))
    assert fused_seconds(elements, 4 * elements, H200) == pytest.approx(fused_seconds(elements, 5 * elements, H200))  # by elements


@pytest.mark.parametrize(("problem", "least", "most"), [("gemm:16x1000x2048:nt", 40e-6, 90e-6), ("gemm:16x1000x2048:nt:f16", 5e-6, 10e-6)])
def test_products_of_a_few_rows_sum_one_after_the_other(problem, least, most):
    assert least < compiler_seconds(parse(problem), H200, False, False, False) < most


def test_channels_that_are_no_whole_vectors_are_copied_first():
    whole, padded = (compiler_seconds(parse(f"conv:mb16ic{at}ih1oc440kh1:f16"), H200, False, False, False) for at in (112, 110))
    assert padded > 1.5 * whole
