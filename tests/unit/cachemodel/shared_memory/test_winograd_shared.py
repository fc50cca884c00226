# SPDX-License-Identifier: Apache-2.0
"""Shared-memory wavefronts of the fused Winograd kernels, against what openCNN's layouts are known to take."""

import json

import numpy as np
import pytest
import winograd_launch as winograd
from checkout import ROOT

from pysim.cachemodel.shared_memory.banks import SharedMemory
from pysim.cachemodel.shared_memory.gemm_shared import Access
from pysim.cachemodel.shared_memory.patterns import pattern
from pysim.cachemodel.shared_memory.tile import addresses
from pysim.cachemodel.shared_memory.winograd_shared import F4_VARIANTS, iteration
from pysim.errors import OperandError
from pysim.problem.text import parse
from pysim.registry.cuda import ConvKernel, conv_kernel, conv_kernels

FUSED = {row.variant: row for row in conv_kernels() if row.outputs > 1 and not row.staged}
COUNTED = ROOT / "lab" / "data" / "h200/wavefronts-conv.json"  # lab/benchmarks/cuda/conv_wavefronts.py
PATTERNS = {"reference": "opencnn-reference", "sts64": "opencnn-optsts64", "compact": "opencnn-optsts64-compact"}


def each(accesses: tuple[Access, ...], operand: str, store: bool) -> set[int]:
    """Wavefronts that instructions of one kind take."""
    return {
        int(total)
        for access in accesses
        if (access.operand, access.store, access.asynchronous) == (operand, store, False)
        for total in SharedMemory().count(access.addresses, access.width, access.store, access.active).total
    }


def test_every_fused_kernel_is_described() -> None:
    assert set(FUSED) == {*PATTERNS, *F4_VARIANTS}


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("form", FUSED)
def test_nothing_conflicts(form: str, nhwc: bool) -> None:
    counted = winograd.wavefronts(FUSED[form], nhwc, steps=3)
    assert all(kind.total == kind.minimum for kind in counted.values())


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("form", PATTERNS)
def test_instructions_take_the_wavefronts_of_the_published_layouts(form: str, nhwc: bool) -> None:
    out, once = winograd.way_out(FUSED[form], nhwc), iteration(FUSED[form], nhwc)
    assert each(out, "sums", True) == {2}  # 16 bytes of half the lanes, or 8 of all
    assert each(out, "sums", False) == {1}
    assert each(once, "filters", False) == each(once, "tiles", False) == {2}  # 4 without the pairs of lanes that share a vector
    assert each(once, "patches", True) == {1}


@pytest.mark.parametrize("form", PATTERNS)
def test_sums_lie_as_opencnn_has_them(form: str) -> None:
    (ours,) = [access for access in winograd.way_out(FUSED[form], False) if access.operand == "sums" and access.store]
    tile = pattern(PATTERNS[form])
    want = set()
    for access in tile.accesses:
        if access.store:
            rows = addresses(tile, access)
            active = np.ones(rows.shape, bool) if access.active is None else access.active
            want |= {tuple(np.where(on, row, -1)) for row, on in zip(rows, active, strict=True)}
    assert {tuple(np.where(on, row, -1)) for row, on in zip(ours.addresses, ours.active, strict=True)} == want


@pytest.mark.parametrize("form", PATTERNS)
def test_every_sum_is_stored_once_and_read_where_it_lies(form: str) -> None:
    out = winograd.way_out(FUSED[form], False)
    stored = next(access for access in out if access.operand == "sums" and access.store)
    loaded = next(access for access in out if access.operand == "sums" and not access.store)
    words = stored.addresses[stored.active][:, None] + 4 * np.arange(stored.width // 4)
    assert words.size == loaded.addresses.size == 64 * 32 * 16
    assert set(words.ravel()) == set(loaded.addresses.ravel())


@pytest.mark.parametrize("nhwc", [False, True])
def test_counts_of_a_tile_are_those_of_the_kernels_loops(nhwc: bool) -> None:
    counted = winograd.wavefronts(FUSED["sts64"], nhwc, steps=8)
    # fragments: 16 units a step and one before, 4 loads a warp; the way out: 128 loads of planes and 32 of outputs a thread
    assert counted["loads"].instructions == (8 * 16 + 1) * 4 * 8 + (128 + 32) * 8
    assert counted["loads"].total == 2 * (8 * 16 + 1) * 4 * 8 + (128 + 32) * 8
    assert counted["stores"].instructions == 8 * 16 * 8 + 64 * 8 + 32 * 8
    assert counted["copies"].instructions == 8 * 64


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("form", F4_VARIANTS)
def test_large_tiles_instructions_are_those_of_the_kernels_loops(form: str, nhwc: bool) -> None:
    counted = winograd.wavefronts(FUSED[form], nhwc, steps=8)
    weights = form == "single"  # a warp's step: 9 words of a filter in, 18 planes out
    out = 2 * (36 + 16) * 16  # planes and outputs of two filters and tiles a thread
    assert counted["loads"].instructions == 8 * 16 * (8 * 6 + 9 * weights) + out
    assert counted["loads"].total == 8 * 16 * (8 * (4 * 2 + 2 + 1) + 9 * weights) + out
    assert counted["stores"].instructions == 8 * 18 * 16 * (1 + weights) + (16 + 2) * 16 + 2 * 16 * 16
    assert counted["copies"].instructions == (8 * 16 * 5 if weights else 8 * 36 * 8 * 32 // 128)


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("form", F4_VARIANTS)
def test_large_tiles_words_are_stored_once_and_read_where_they_lie(form: str, nhwc: bool) -> None:
    out, once = winograd.way_out(FUSED[form], nhwc), iteration(FUSED[form], nhwc)

    def words(accesses: tuple[Access, ...], operand: str, store: bool) -> np.ndarray:
        of = [one for one in accesses if (one.operand, one.store) == (operand, store)]
        return np.concatenate([(one.addresses[one.active][:, None] + 4 * np.arange(one.width // 4)).ravel() for one in of])

    sums = words(out, "sums", True)
    assert sums.size == 36 * 32 * 32 and set(sums) == set(words(out, "sums", False))
    patches = words(once, "patches", True)
    assert patches.size == len(set(patches)) == 36 * 8 * 32 and set(patches) == set(words(once, "tiles", False))
    assert set(words(once, "filters", True)) == set(words(once, "filters", False))
    assert not set(patches) & set(words(once, "filters", True))
    if form == "single":
        weights = words(once, "weights", True)
        assert weights.size == len(set(weights)) == 9 * 8 * 32  # each is read by both warps that make planes of its filter
        assert sorted(words(once, "weights", False)) == sorted([*weights, *weights])


def test_without_its_padding_sts64_would_take_8_wavefronts() -> None:
    unpadded = pattern("opencnn-optsts64-unpadded")
    (access,) = [access for access in unpadded.accesses if access.store]
    assert set(SharedMemory().count(addresses(unpadded, access), 8, True, access.active).total) == {8}


def test_another_kernel_is_refused() -> None:
    staged: ConvKernel = next(row for row in conv_kernels() if row.staged)
    with pytest.raises(OperandError, match="not a fused Winograd kernel"):
        iteration(staged, False)


RAGGED = ["conv:g2mb3ic74ih11iw9oc138kh3kw3", "conv:mb2ic19ih13iw14oc57kh3kw3ph1pw1", "conv:ic1ih1oc1kh3ph1"]


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("problem", RAGGED)
@pytest.mark.parametrize("form", PATTERNS)
def test_every_output_that_exists_is_loaded_once_and_no_other(form: str, problem: str, nhwc: bool) -> None:
    w = parse(problem)
    assert winograd._inside(FUSED[form], w, nhwc).active.sum() == w.batch * w.filters // w.groups * w.windows


@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("form", FUSED)
def test_whole_tiles_of_a_launch_are_so_many_tiles_and_places(form: str, nhwc: bool) -> None:
    kernel = FUSED[form]
    side = 8 * kernel.outputs  # 64 tiles
    one, all_of = winograd.wavefronts(kernel, nhwc, 4), winograd.launch(kernel, parse(f"conv:ic32ih{side}oc128kh3ph1"), nhwc)
    passed = 2 * 16 * 16 if form in F4_VARIANTS else 0  # outputs, which a plain epilogue keeps
    warps = 16 if form in F4_VARIANTS else 8
    read = 2 + 2 * 2 + (form in F4_VARIANTS)  # whether there is a tile, twice; the tile, of 32 bytes; its row and column again
    blocks = 2 * 128 // kernel.block_filters
    assert all_of["loads"].total == blocks * (one["loads"].total - passed + 7 + warps * read)
    assert all_of["stores"].total == blocks * (one["stores"].total - passed + 12)
    assert all_of["copies"].total == blocks * one["copies"].total


def test_a_launch_is_what_an_h200_counted() -> None:
    counted = winograd.launch(FUSED["sts64"], parse("conv:mb128ic128ih28oc128kh3ph1"), False)
    # by Nsight Compute: sass__inst_executed_shared_loads and _stores; memory_l1_wavefronts_shared; those of op_ldgsts
    assert (counted["loads"].instructions, counted["stores"].instructions) == (14_963_424, 4_434_304)
    assert sum(kind.total for kind in counted.values()) == 39_543_392
    assert counted["copies"].total == 6_422_528


@pytest.mark.skipif(not COUNTED.exists(), reason=f"{COUNTED.name} has not been measured")
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("form", [form for form in FUSED if form != "drained"])  # whose drains are not described
def test_predictions_are_what_an_h200_counted(form: str, nhwc: bool) -> None:
    layout = "nhwc" if nhwc else "nchw"
    launches = [one for one in json.loads(COUNTED.read_text())["launches"] if (one["kernel"], one["layout"]) == (FUSED[form].name, layout)]
    assert {one["decomposition"] for one in launches} == {"data_parallel", "split_k", "stream_k"}
    for one in launches:
        costs = [winograd.launch(conv_kernel(one["kernel"]), parse(text), nhwc) for text in one["problem"].split(" less ")]
        for kind in ("loads", "stores"):
            assert one["counted"][kind] == costs[0][kind].total - sum(less[kind].total for less in costs[1:]), (kind, one)
