# SPDX-License-Identifier: Apache-2.0
"""The SIMT products' shared memory, as described in Python: complete, and free of bank conflicts where it is meant to be."""

import itertools

import numpy as np
import pytest

from pysim.cachemodel.shared_memory.gemm_shared import accesses, byte_of, wavefronts
from pysim.errors import OperandError
from pysim.registry.cuda import gemm_kernel, gemm_kernels

ROWS = [kernel for kernel in gemm_kernels() if not kernel.tiles.tensor and kernel.tiles.k_warps == 1]
FULL = [kernel for kernel in ROWS if not kernel.ablation]
LAYOUTS = list(itertools.product((False, True), repeat=2))
BOTH_WAYS = [(False, False), (True, True)]  # each operand either way: what one does is independent of the other
UNIT = {"f32": 4, "f64": 8, "f16": 2, "s8": 4}
DEPTH = {"f32": 1, "f64": 1, "f16": 1, "s8": 4}
HUGE = "f32_simt_128x128x8_64x32_8x8_s2_c1x1"


def units(kernel, operand):
    """k and x of every unit of an operand's stage."""
    extent = kernel.block_m if operand == "A" else kernel.block_n
    return np.meshgrid(np.arange(kernel.block_k // DEPTH[kernel.dtype]), np.arange(extent), indexing="ij")


def touched(found, unit):
    """The units that instructions touch, one entry a touch."""
    parts = []
    for access in found:
        start = access.addresses[access.active]
        steps = np.arange(0, access.width, min(access.width, unit))
        parts.append(((start[:, None] + steps) // unit).ravel())
    return np.concatenate(parts)


def test_there_are_rows_of_every_type_and_of_the_ablation():
    assert {kernel.dtype for kernel in FULL} == {"f32", "f64", "f16", "s8"}
    assert {kernel.variant for kernel in ROWS} == {"full", "cluster", "scalar", "unpadded"}


@pytest.mark.parametrize("kernel", FULL, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("trans_a", "trans_b"), BOTH_WAYS)
def test_full_rows_take_the_fewest_wavefronts(kernel, trans_a, trans_b):
    for kind, cost in wavefronts(kernel.tiles, trans_a, trans_b).items():
        assert cost.total == cost.minimum, kind
        assert (cost.total > 0) == (kind in ("loads", "copies" if kernel.stages >= 3 else "stores"))


@pytest.mark.parametrize("kernel", ROWS, ids=lambda kernel: kernel.name)
def test_every_unit_has_a_place_of_its_own_in_the_stage(kernel):
    for operand in "AB":
        k, x = units(kernel, operand)
        places = np.sort(byte_of(kernel.tiles, operand, k, x).ravel())
        np.testing.assert_array_equal(places, np.arange(k.size) * UNIT[kernel.dtype])


@pytest.mark.parametrize("kernel", ROWS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("trans_a", "trans_b"), BOTH_WAYS)
def test_stores_fill_the_stage_once_and_loads_read_all_of_it(kernel, trans_a, trans_b):
    found = accesses(kernel.tiles, trans_a, trans_b)
    for operand in "AB":
        size = units(kernel, operand)[0].size
        stores = [access for access in found if access.operand == operand and access.store]
        narrow = min(access.width for access in stores)
        unit = min(UNIT[kernel.dtype], narrow)
        np.testing.assert_array_equal(np.sort(touched(stores, unit)), np.arange(size * UNIT[kernel.dtype] // unit))
        loads = [access for access in found if access.operand == operand and not access.store]
        groups = kernel.block_n // kernel.warp_n * (kernel.warp_n // kernel.thread_n)
        if operand == "B":
            groups = kernel.block_m // kernel.warp_m * (kernel.warp_m // kernel.thread_m)
        np.testing.assert_array_equal(np.bincount(touched(loads, UNIT[kernel.dtype]), minlength=size), groups)


def test_the_worked_number_of_the_largest_policy():
    cost = wavefronts(gemm_kernel(HUGE).tiles, False, False)
    assert (cost["loads"].instructions, cost["loads"].total) == (256, 512)
    assert (cost["stores"].instructions, cost["stores"].total) == (8 * 4 + 8, 8 * 4 + 8 * 4)


def test_what_the_ablation_leaves_out_costs_wavefronts():
    full, scalar, unpadded = (gemm_kernel(HUGE + suffix) for suffix in ("", "_scalar", "_unpadded"))
    for trans_a, trans_b in LAYOUTS:
        best, words, plain = (wavefronts(kernel.tiles, trans_a, trans_b) for kernel in (full, scalar, unpadded))
        assert words["loads"].instructions == 4 * best["loads"].instructions
        assert words["loads"].total == 2 * best["loads"].total
        assert plain["loads"] == best["loads"]
        contiguous_k = (not trans_a) + trans_b
        assert plain["stores"].total == best["stores"].total + contiguous_k * 8 * 4


def test_other_families_are_refused():
    other = next(kernel for kernel in gemm_kernels() if kernel.tiles.tensor)
    with pytest.raises(OperandError, match="not those of a SIMT kernel"):
        accesses(other.tiles, False, False)
