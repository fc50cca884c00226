# SPDX-License-Identifier: Apache-2.0
"""What blocks of a launch share in L2, against rasterisations followed tile by tile and k-iteration by k-iteration."""

from collections import defaultdict
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import waves
from pysim.cachemodel.gpu.columns import Table
from pysim.cachemodel.gpu.launches import columns_of
from pysim.cachemodel.gpu.traffic import SIMULTANEOUS, Rasterisation, Sharing, sharing, stream_k_sharing, within_gpcs
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.problem.gemm import Gemm
from pysim.registry.cuda import GemmKernel

STEPS = 40
Times = dict[tuple[int, int], list[float]]
WGMMA = GemmKernel(
    1, "wgmma", "f16", "full", 128, 64, 64, 64, 64, 64, 64, 8, 1, 1, 90, 128, exact_capability=True, alignment=16, producer=True
)


def h200() -> Gpu:
    found = load_any("h200")
    assert isinstance(found, Gpu)
    return found


def raster(n_fast: int, n_slow: int, group: int, blocks: int, fast: float, slow: float, result: float = 0) -> Rasterisation:
    share = n_fast * n_slow * STEPS / blocks
    return Rasterisation(*(np.array([x], float) for x in (fast, slow, n_fast, n_slow, group, n_fast * n_slow, STEPS, share, result)))


def shared(order: Rasterisation) -> Sharing:
    streams, rows = np.zeros((len(Sharing._fields), order.share.size)), np.flatnonzero(order.share > 0)
    if rows.size:
        streams[:, rows] = stream_k_sharing(h200(), Rasterisation._make(of[rows] for of in order))
    return sharing(h200(), order, Sharing._make(streams))


def times(n_fast: int, n_slow: int, group: int, blocks: int) -> tuple[Times, Times]:
    """When blocks of stream-K read each (panel, k-iteration) of the fast and of the slow operand, in k-iterations since they began. The
    rasterisation is that of native/cuda/core/decomposition.cuh."""
    order = []
    for first in range(0, n_slow, group):
        order += [(down, first + across) for down in range(n_fast) for across in range(min(group, n_slow - first))]
    of_fast, of_slow = defaultdict(list), defaultdict(list)
    for block in range(blocks):
        first, end = (g * n_fast * n_slow * STEPS // blocks for g in (block, block + 1))
        for at in range(first, end):
            down, across = order[at // STEPS]
            since = at - block * n_fast * n_slow * STEPS / blocks  # as if a block could begin within a step
            of_fast[down, at % STEPS].append(since)
            of_slow[across, at % STEPS].append(since)
    return of_fast, of_slow


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize(("n_fast", "n_slow"), [(24, 24), (32, 32), (10, 10), (2, 43), (40, 16)])
def test_blocks_of_stream_k_share_the_panels_that_their_rasterisation_reads_together(n_fast, n_slow, group):
    found = shared(raster(n_fast, n_slow, group, 66, 1.0, 1.0))
    for alone, touched in zip(found[:2], times(n_fast, n_slow, group, 66), strict=True):
        together = sum(later - sooner <= SIMULTANEOUS for when in touched.values() for sooner, later in pairwise(sorted(when)))
        assert alone[0] == pytest.approx(1 - together / sum(map(len, touched.values())), abs=0.12)


def test_a_row_of_24_tiles_is_read_by_six_clusters_at_a_time_and_one_of_32_by_two():
    assert shared(raster(24, 24, 1, 66, 1.0, 1.0)).fast_alone == pytest.approx(1 / 6)
    assert shared(raster(32, 32, 1, 66, 1.0, 1.0)).fast_alone == pytest.approx(1 / 2, abs=0.05)


def test_blocks_of_stream_k_bring_from_memory_what_data_parallel_ones_share():
    """8192 cubed in f16, 66 clusters of 256 x 256: operands of 128 MiB, several times what L2 holds."""
    operand = 8192.0 * 8192 * 2
    stream = shared(raster(32, 32, 8, 66, operand, operand))
    waves = shared(raster(32, 32, 8, 66, operand, operand)._replace(at_once=np.array([66.0]), share=np.zeros(1)))
    assert sum(stream[2:])[0] > 3 * sum(waves[2:])[0]
    small = shared(raster(32, 32, 8, 66, 1e6, 1e6))
    assert sum(small[2:])[0] == 0


def test_results_written_between_two_reads_of_an_operand_take_space_in_l2():
    """25088 x 768 x 192 in tf32: 19 MB of A, read for each two of six columns of tiles; 26 MB of C are written between two reads."""
    kept, written = (raster(196, 6, 2, 132, 19.3e6, 0.6e6, result) for result in (0, 77.1e6))
    assert shared(written).fast_again[0] >= shared(kept).fast_again[0]
    kept, written = (order._replace(at_once=np.array([132.0]), share=np.zeros(1)) for order in (kept, written))
    assert shared(kept).fast_again[0] < 0.1
    assert shared(written).fast_again[0] > 1


def test_launches_of_one_table_do_not_change_each_other():
    one, other = raster(24, 24, 1, 66, 3e8, 2e8), raster(7, 300, 4, 132, 1e7, 4e8)
    both = shared(Rasterisation(*(np.concatenate(pair) for pair in zip(one, other, strict=True))))
    for at, single in enumerate((one, other)):
        for column, value in zip(both, shared(single), strict=True):
            assert column[at] == pytest.approx(value[0], rel=1e-12)


def predicted(problem: Gemm, kernel: GemmKernel) -> waves.Prediction:
    """A kernel's launch, data parallel, along m."""
    table = Table(*(np.array([value]) for value in (0, 0, 1, 0, 1)))
    return waves.predict(h200(), columns_of([one.columns for one in gemm.variants(h200(), problem, [kernel], {}) if one.columns]), table)


def test_boxes_of_the_copy_engine_are_filled_whole():
    """8 rows of a tile of 128 come in boxes of 8, 136 in two boxes of 68; where blocks share A's rows, in two of 128."""
    problem = Gemm(m=8, n=4096, k=4096, dtype="f16")
    a, b, c = 2 * 8 * 4096, 2 * 4096 * 4096, 2 * 8 * 4096
    found = predicted(problem, WGMMA)
    assert found.traffic.l2_bytes[0] == a * 64 + b + c
    simt = msgspec.structs.replace(
        WGMMA, mainloop="mma", tensor_threads=32, producer=False, exact_capability=False, thread_m=16, thread_n=8, stages=3
    )
    threads = predicted(problem, simt)
    assert threads.traffic.l2_bytes[0] == a * 64 + b + c
    ragged = Gemm(m=136, n=4096, k=4096, dtype="f16")
    assert predicted(ragged, WGMMA).traffic.l2_bytes[0] == 17 * (a * 64 + c) + 2 * b
    shared = msgspec.structs.replace(WGMMA, cluster_n=2)
    two, four = (predicted(msgspec.structs.replace(ragged, m=m), shared) for m in (136, 256))
    results = two.traffic.l2_bytes[0] - 17 * c, four.traffic.l2_bytes[0] - 32 * c
    assert results[0] == pytest.approx(results[1], rel=1e-3)


def test_arithmetic_and_traffic_wait_for_each_other_the_more_the_closer_they_are():
    assert waves.overlapped(np.array(3.0), np.array(4.0)) == pytest.approx(5)
    assert waves.overlapped(np.array(100.0), np.array(1.0)) == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize(("n_fast", "n_slow", "group"), [(13, 8, 1), (25, 4, 1), (13, 4, 1), (13, 4, 2), (16, 8, 4), (32, 4, 4)])
def test_blocks_of_a_gpc_take_the_panels_that_their_tiles_touch(n_fast, n_slow, group, clusters):
    gpcs, tiles = 8, n_fast * n_slow
    order = [(down, first + across) for first in range(0, n_slow, group) for down in range(n_fast) for across in range(group)]
    edges = np.linspace(0, tiles, gpcs + 1).round().astype(int)
    of_gpcs = [order[g::gpcs] if clusters else order[edges[g] : edges[g + 1]] for g in range(gpcs)]
    found = within_gpcs(raster(n_fast, n_slow, group, tiles, 1.0, 1.0)._replace(at_once=np.array([float(tiles)])), gpcs, clusters)
    for share, side in zip(found, (0, 1), strict=True):
        panels = sum(len({tile[side] for tile in own}) for own in of_gpcs)
        assert share[0] * tiles == pytest.approx(panels, rel=0.25, abs=gpcs)


def test_box_rows_are_filled_where_an_operand_ends_inside_a_sector():
    """80 bytes of k end inside a sector and 96 do not; of an A that is not K-major, rows of m end."""
    for m, n, k, trans_a, ends in ((25088, 240, 40, False, (25088, 240)), (25088, 240, 48, False, (0, 0)), (40, 256, 512, True, (512, 0))):
        problem = Gemm(m=m, n=n, k=k, trans_a=trans_a, trans_b=True, dtype="f16")
        assert gemm.row_ends(problem, WGMMA) == ends


def test_a_product_of_one_short_k_iteration_takes_the_time_of_filling_its_boxes():
    """25088x240x40 took 12.0 to 17.8 us by nine kernels on an H200 (h200/wgmma-rows.jsonl)."""
    columns = [columns_of([one.columns for one in gemm.variants(h200(), Gemm(m=25088, n=240, k=k, trans_b=True, dtype="f16"), [WGMMA], {})
               if one.columns]) for k in (40, 48)]  # fmt: skip
    filled, aligned = (waves.predict(h200(), one, Table(*(np.array([x]) for x in (0, 0, 1, 0, 4)))) for one in columns)
    assert filled.cycles > 1.1 * aligned.cycles
    assert filled.waves.sum(axis=0)[2] == pytest.approx((25088 * 4 + 240 * 196) / h200().model.row_ends_per_cycle.value)
