# SPDX-License-Identifier: Apache-2.0
"""The cost of launches on a GPU: its counts are checked one by one, and what makes a kernel slow does."""

import math

import msgspec
import numpy as np
import pytest
from gpus import BLOG, CLUSTER, GPUS, H200, SMALL, WGMMA, machine, simt

from pysim import planner
from pysim.algorithms.gpu import gemm
from pysim.cachemodel.gpu import launches, mainloop, waves
from pysim.cachemodel.gpu.columns import DATA_PARALLEL, SPLIT_K, STREAM_K, Columns, Table
from pysim.cachemodel.gpu.occupancy import occupancy
from pysim.cachemodel.gpu.traffic import lines_of_row, sectors_of
from pysim.cachemodel.shared_memory.gemm_shared import wavefronts
from pysim.machine.gpu import Gpu
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.cuda import Attributes, GemmKernel, conv_kernel, gemm_attributes, gemm_kernel, gemm_kernels


def columns(on: Gpu, problem: Gemm, kernels: list[GemmKernel]) -> Columns:
    known = gemm_attributes(on.capability_number)
    return launches.columns_of([one.columns for one in gemm.variants(on, problem, kernels, known) if one.columns])


def predicted(on: Gpu, problem: Gemm, kernel: GemmKernel, schedule: GpuSchedule | None = None, hot: bool = True) -> waves.Prediction:
    s = schedule or GpuSchedule(kernel.name, "data_parallel", 1, False, 1)
    launch = (0, DECOMPOSITIONS.index(s.decomposition), s.splits, s.along_n, s.group)
    return waves.predict(on, columns(on, problem, [kernel]), Table(*(np.array([value]) for value in launch)), hot)


def seconds(on: Gpu, problem: Gemm, kernel: GemmKernel) -> float:
    return float(predicted(on, problem, kernel).cycles[0]) / on.clock_hz


def table(on: Gpu, problem: Gemm, kernels: list[GemmKernel]) -> tuple[Columns, Table]:
    """All launches of some kernels."""
    found = columns(on, problem, kernels)
    return found, launches.table_of(on, found)


# The registry


def test_the_blogs_sgemm_has_2560_blocks_of_256_threads_and_fills_its_80_sms():
    """CUTLASS blog: 128x128x8 tiles of 8x8 threads on M=10240, N=4096, and V100's 80 SMs."""
    v100, problem = machine("v100"), Gemm(m=10240, n=4096, k=4096)
    assert BLOG.math_threads == BLOG.tiles.threads == 256
    counts = predicted(v100, problem, BLOG).counts
    assert counts.tiles[0] == 2560 and counts.all_iterations[0] == 512
    assert counts.tail_blocks[0] == 0 and counts.slots[0] % 80 == 0
    assert counts.tiles[0] * BLOG.block_m * BLOG.block_n == problem.m * problem.n  # every output of a tile is useful


# Lines and sectors


def test_rows_that_begin_inside_lines_lie_in_two_of_them_and_runs_inside_sectors_touch_one_more():
    assert [lines_of_row(pitch) for pitch in (128, 1024, 64, 80, 2016)] == [1, 1, 1.5, 1.875, 1.75]
    assert [lines_of_row(pitch, 64) for pitch in (128, 64, 80)] == [1, 1, 1.375]
    assert [sectors_of(pitch) for pitch in (32, 6400, 6384)] == [1, 1, 1.25]
    for pitch in (16, 48, 80, 96, 2016):
        touched = [(start % 128 + 127) // 128 + 1 for start in range(0, 128 * pitch, pitch)]
        assert lines_of_row(pitch) == np.mean(touched)


def test_l2_takes_longer_for_operands_and_results_whose_rows_begin_inside_lines_and_sectors():
    whole, ragged = (predicted(H200, Gemm(m=4096, n=n, k=k, dtype="f16", trans_b=True), WGMMA) for n, k in ((1536, 4096), (1544, 4104)))
    assert ragged.terms["L2"][0] > 1.5 * whole.terms["L2"][0] and ragged.traffic.l2_bytes[0] < 1.2 * whole.traffic.l2_bytes[0]
    whole, ragged = (predicted(H200, Gemm(m=4096, n=n, k=64, dtype="f16", trans_b=True), WGMMA) for n in (1536, 1528))
    assert ragged.traffic.written[0] == pytest.approx(2 * 1528 / 1536 * whole.traffic.written[0])  # 4 times a quarter of a run more


def test_a_launch_of_clusters_begins_during_a_copy():
    longer = []
    for k in (1024, 1001):  # rows of B that no box begins with
        problem = Gemm(m=2048, n=2048, k=k, dtype="f16", trans_b=True)
        alone, together = (predicted(H200, problem, kernel).terms["launch"][0] for kernel in (WGMMA, CLUSTER))
        longer.append(together - alone)
    assert longer == [pytest.approx(waves.CLUSTER_LAUNCH_LATENCIES * H200.l2_latency_cycles.value), 0]


# Occupancy


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (256, 128, 32768, 2),  # 65,536 registers / (128 x 256)
        (256, 32, 65536, 3),  # 228 KiB / 65 KiB
        (32, 16, 0, 32),  # the limit of blocks
        (1024, 32, 1024, 2),  # 64 warps
        (384, 168, 198000, 1),
        (128, 255, 232448, 1),  # exactly what a block may have
        (128, 64, 232449, 0),  # one byte more
    ],
)
def test_occupancy_is_the_least_of_what_an_sm_can_hold(threads, registers, shared, blocks):
    assert occupancy(H200, Attributes(threads, registers, shared)) == blocks


# Counts, against brute force


def tiles_in_order(tiles_m: int, tiles_n: int, along_n: bool, group: int) -> list[tuple[int, int]]:
    """The rasterisation of native/cuda/core/decomposition.cuh, tile by tile."""
    fast, slow = (tiles_n, tiles_m) if along_n else (tiles_m, tiles_n)
    order = []
    for first in range(0, slow, group):
        width = min(group, slow - first)
        order += [(down, first + across) for down in range(fast) for across in range(width)]
    return [(across, down) if along_n else (down, across) for down, across in order]


@pytest.mark.parametrize("along_n", [False, True])
@pytest.mark.parametrize("group", [1, 2, 8])
@pytest.mark.parametrize(("m", "n"), [(8192, 8192), (16384, 4096), (2048, 24576)])
def test_memory_is_read_for_what_waves_of_the_rasterisation_share_when_l2_keeps_one_wave(m, n, along_n, group):
    """With an L2 that holds a wave's panels and no more, each wave reads its distinct rows of A and columns of B."""
    k, tile = 512, 128
    tiny = msgspec.structs.replace(H200, l2_bytes=msgspec.structs.replace(H200.l2_bytes, value=1 << 20))
    problem, kernel = Gemm(m=m, n=n, k=k), simt((tile, tile, 8), (64, 32), (8, 8))
    found = predicted(tiny, problem, kernel, GpuSchedule(kernel.name, "data_parallel", 1, along_n, group), hot=False)
    slots = int(found.counts.slots[0])
    order = tiles_in_order(m // tile, n // tile, along_n, group)
    waves = [order[i : i + slots] for i in range(0, len(order), slots)]
    panel = tile * k * 4
    distinct = sum((len({i for i, _ in wave}) + len({j for _, j in wave})) * panel for wave in waves)
    assert float(found.traffic.memory_bytes[0]) - m * n * 4 == pytest.approx(distinct, rel=0.15)


@pytest.mark.parametrize("kernel", [SMALL, BLOG])
def test_l2_is_read_for_a_and_b_once_per_column_and_row_of_tiles(kernel):
    problem = Gemm(m=1000, n=700, k=300)
    rows, columns = math.ceil(1000 / kernel.block_m), math.ceil(700 / kernel.block_n)
    expected = 4 * (1000 * 300 * columns + 300 * 700 * rows + 1000 * 700)
    assert float(predicted(H200, problem, kernel).traffic.l2_bytes[0]) == expected


def test_a_cluster_reads_what_its_blocks_share_once():
    problem = Gemm(m=4096, n=4096, k=1024, dtype="f16")
    alone, shared = (predicted(H200, problem, kernel).traffic.l2_bytes[0] for kernel in (WGMMA, CLUSTER))
    assert alone - shared == 2 * 4096 * 1024 * 16  # B is read by 16 rows of clusters instead of 32 of blocks


def test_operands_that_stay_in_l2_cost_no_memory_traffic_until_caches_are_cold():
    problem = Gemm(m=512, n=512, k=512)
    assert predicted(H200, problem, SMALL).traffic.memory_bytes[0] == 0
    assert predicted(H200, problem, SMALL, hot=False).traffic.memory_bytes[0] >= 2 * 512 * 512 * 4


# What costs must do


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("shape", [(10240, 4096, 4096), (512, 512, 512), (16, 4096, 4096), (100, 30, 70000), (5120, 5120, 64)])
def test_no_prediction_beats_the_roofline(name, shape):
    on = machine(name)
    m, n, k = shape
    problem = Gemm(m=m, n=n, k=k)
    prediction = waves.predict(on, *table(on, problem, [BLOG, SMALL]), hot=False)
    peak = on.sms.value * on.fma_per_cycle["f32"].value * on.frequency_hz.value
    least = max(m * n * k / peak, 4 * (m * k + k * n + m * n) / on.memory_bytes_per_second.value)
    assert prediction.cycles.min() / on.clock_hz >= least


def test_one_tile_more_than_a_wave_costs_a_wave():
    slots = int(predicted(H200, Gemm(m=64, n=64, k=4096), SMALL).counts.slots[0])
    full, more, next_one = (predicted(H200, Gemm(m=64 * slots + extra, n=64, k=4096), SMALL) for extra in (0, 1, 65))
    assert full.counts.full_waves[0] == 1 and full.counts.tail_blocks[0] == 0 and more.counts.tail_blocks[0] == 1
    alone = seconds(H200, Gemm(m=64, n=64, k=4096), SMALL) - H200.model.families["simt"].launch_seconds.value
    assert (more.cycles[0] - full.cycles[0]) / H200.clock_hz > 0.8 * alone
    assert (next_one.cycles[0] - more.cycles[0]) / H200.clock_hz < 0.01 * alone


def test_power_bounds_tensor_cores_and_not_a_machine_without_such_a_number():
    problem = Gemm(m=8192, n=8192, k=8192, dtype="f16")
    bound = predicted(H200, problem, WGMMA).terms["power"][0]
    free = msgspec.structs.replace(H200, sustained_hz={})
    assert bound == pytest.approx(8192**3 / (132 * 2048) * H200.frequency_hz.value / H200.sustained_hz["tensor_f16"].value)
    assert predicted(free, problem, WGMMA).terms["power"][0] < 0.8 * bound


def test_more_stages_never_cost_time_and_hide_latency_where_blocks_are_few():
    problem = Gemm(m=64, n=64, k=65536)
    times = [
        seconds(H200, problem, msgspec.structs.replace(SMALL, stages=stages)) for stages in (1, 3, 4, 5)
    ]  # none measured: one efficiency
    assert times == sorted(times, reverse=True) and times[0] > times[2]


def test_bank_conflicts_of_fragment_loads_are_counted_as_the_rule_of_the_generation_has_them():
    """8x8 threads: 8 warps x 8 units of k x 4 loads of 16 bytes, each in 2 wavefronts where lanes pair; and the way into the stage."""
    kernel = simt((128, 128, 8), (64, 32), (8, 8))
    loads = wavefronts(kernel.tiles, False, False)["loads"]
    assert (loads.instructions, loads.total) == (256, 512)
    step = mainloop.work(H200, kernel.tiles, False, False)
    assert step.shared == sum(one.total for one in wavefronts(kernel.tiles, False, False).values())
    unpadded = mainloop.work(H200, msgspec.structs.replace(kernel, variant="unpadded", ablation=True).tiles, False, False)
    assert unpadded.shared > step.shared


# Choice


def test_a_deep_product_with_few_tiles_is_split_and_a_large_one_is_not():
    found, launch = table(H200, Gemm(m=128, n=128, k=65536), [SMALL])
    cycles = waves.predict(H200, found, launch).cycles
    assert DECOMPOSITIONS[launch.kind[cycles.argmin()]] in ("split_k", "stream_k")
    assert cycles[launch.kind == DATA_PARALLEL].min() > 4 * cycles.min()
    assert SPLIT_K not in table(H200, Gemm(m=8192, n=8192, k=4096), [SMALL])[1].kind


def test_parts_that_are_reduced_in_a_cluster_need_no_workspace_no_flags_and_no_memory():
    problem, far = Gemm(m=128, n=128, k=16384, dtype="f16", trans_b=True), msgspec.structs.replace(WGMMA, reduces_in_cluster=0)
    near = msgspec.structs.replace(WGMMA, reduces_in_cluster=8)
    for splits, kept in ((8, 0), (9, 9 * 128 * 128 * 4 + 512)):
        assert gemm.launch_bytes(problem, near, GpuSchedule(near.name, "split_k", splits, False, 1)) == kept
    (found, launch), (others, _) = table(H200, problem, [near]), table(H200, problem, [far])
    together, apart = waves.predict(H200, found, launch), waves.predict(H200, others, launch)
    eight = (launch.kind == SPLIT_K) & (launch.splits == 8)
    assert (together.cycles[eight] < apart.cycles[eight]).all()
    assert (together.traffic.memory_bytes[eight] <= apart.traffic.memory_bytes[eight]).all()
    assert (together.cycles[launch.kind == STREAM_K] == apart.cycles[launch.kind == STREAM_K]).all()


def test_clusters_that_do_not_all_run_at_once_take_another_round():
    """A tile in eight parts is a cluster of eight SMs."""
    kernel = msgspec.structs.replace(WGMMA, reduces_in_cluster=8)
    count = H200.clusters(8)
    assert count < H200.sms.value // 8  # or there is nothing to see
    eight = GpuSchedule(kernel.name, "split_k", 8, False, 1)
    few, many = (
        predicted(H200, Gemm(m=128, n=128 * tiles, k=8192, dtype="f16", trans_b=True), kernel, eight) for tiles in (count, count + 1)
    )
    assert (few.counts.full_waves[0], few.counts.tail_blocks[0]) == (1, 0)
    assert (many.counts.full_waves[0], many.counts.tail_blocks[0]) == (1, 1)
    assert many.cycles[0] > 1.3 * few.cycles[0]
    start = waves.CLUSTER_LAUNCH_LATENCIES * H200.l2_latency_cycles.value  # of the second round's clusters
    assert many.terms["launch"][0] - few.terms["launch"][0] == pytest.approx(start)
    blocks = msgspec.structs.replace(WGMMA, reduces_in_cluster=0)  # whose parts meet through memory, each block on its own
    assert predicted(H200, Gemm(m=128, n=128 * (count + 1), k=8192, dtype="f16", trans_b=True), blocks, eight).counts.full_waves[0] == 0


def test_parts_of_a_tile_share_no_bytes_so_a_wave_holds_fewer_tiles():
    """64 x 32 tiles in two parts: 66 tiles at once instead of 132, so a panel of A serves fewer tiles at a time."""
    problem = Gemm(m=128 * 64, n=128 * 32, k=4096, dtype="f16", trans_b=True)
    whole, parts = (
        predicted(H200, problem, WGMMA, GpuSchedule(WGMMA.name, kind, splits, False, 1)).traffic.l2_served[0]
        for kind, splits in (("data_parallel", 1), ("split_k", 2))
    )
    assert parts > whole


def test_parts_of_a_cluster_s_tile_are_reduced_in_a_cluster_of_clusters():
    pair = msgspec.structs.replace(CLUSTER, reduces_in_cluster=4)
    problem, four = Gemm(m=256, n=128, k=8192, dtype="f16", trans_b=True), GpuSchedule(pair.name, "split_k", 4, False, 1)
    assert gemm.launch_bytes(problem, pair, four) == 0
    found = predicted(H200, problem, pair, four)
    assert found.counts.units[0] == 4 * H200.clusters(8)
    assert found.terms["split-K fix-up"][0] > 0


def test_ping_pong_warpgroups_hide_the_end_of_a_tile_behind_the_next_one_s_products():
    own = {"warp_m": 128, "warp_n": 128}
    turns, alone = (msgspec.structs.replace(WGMMA, **own, pingpong=pingpong) for pingpong in (True, False))
    assert (turns.tiles.threads, alone.tiles.threads, turns.math_threads) == (384, 256, 128)
    assert mainloop.shared_bytes(turns.tiles) > mainloop.shared_bytes(alone.tiles)
    for m, k, less in ((128, 64, False), (128 * 132 * 4, 64, True)):
        problem = Gemm(m=m, n=128, k=k, dtype="f16", trans_b=True)
        ends = [predicted(H200, problem, kernel).terms["prologue/epilogue"][0] for kernel in (turns, alone)]
        assert (ends[0] < ends[1]) == less


@pytest.mark.parametrize(("layout", "copied"), [("nn", 0), ("tt", 0), ("nt", 0), ("tn", 1)])
def test_tf32_on_warpgroups_copies_an_operand_only_where_neither_has_rows_along_k(layout, copied):
    kernel = gemm_kernel("tf32_wgmma_128x256x32_64x256_64x256_s4_c2x1")
    problem = parse(f"gemm:1024x512x256:{layout}:tf32")
    assert len([*gemm.copies(problem, kernel)]) == columns(H200, problem, [kernel]).conversions[0] == copied
    transposed = gemm.computed(problem, kernel)
    assert (transposed.m, transposed.n, transposed.layout) == ((512, 1024, "tt") if layout == "nn" else (1024, 512, layout))
    assert gemm.tiles_of(problem, kernel) == (2 * 4 if layout == "nn" else 4 * 2)


def test_copies_of_both_operands_are_one_launch_that_clears_the_flags_too():
    one, both = (Gemm(m=1000, n=1024, k=k, dtype="f16", trans_a=True, trans_b=both) for k, both in ((1024, False), (1025, True)))
    assert columns(H200, both, [WGMMA]).conversions[0] == 1 and columns(H200, one, [WGMMA]).conversions[0] == 0
    ragged = Gemm(m=1001, n=1023, k=1025, dtype="f16")
    launch = predicted(H200, ragged, WGMMA).terms["launch"]
    assert columns(H200, ragged, [WGMMA]).conversions[0] == 2 and np.ptp(launch) == 0


@pytest.mark.parametrize(("k", "pitch"), [(101, 208), (255, 512), (257, 640), (1025, 2176)])
def test_rows_of_copies_are_whole_lines_where_that_adds_less_than_a_quarter(k, pitch):
    rows = [*gemm.copies(Gemm(m=1000, n=64, k=k, dtype="f16", trans_b=True), WGMMA)]
    assert rows == [(1000, k, pitch, 2), (64, k, pitch, 2)]
    assert gemm.bytes_of(rows, 2) == 1064 * (2 * k + pitch)


@pytest.mark.parametrize(
    ("layout", "k", "moved"),
    [((False, True), 200, 8), ((False, True), 204, 4), ((False, True), 201, 1), ((False, False), 200, 1)],
    ids=["eights", "fours", "ragged", "transposed"],
)
def test_rows_that_lie_along_k_are_copied_by_words_of_which_they_are_whole_numbers(layout, k, moved):
    problem = Gemm(m=432, n=1016, k=k, trans_a=layout[0], trans_b=layout[1], dtype="s8")
    kernel = msgspec.structs.replace(WGMMA, dtype="s8", block_k=128, k_major=True)
    assert columns(H200, problem, [kernel]).conversion_element[0] == moved


def test_f64_of_rows_that_begin_anywhere_is_multiplied_by_tensor_cores_without_copies():
    best = planner.plan("gemm:127x5950x8085:tt:f64", "h200")
    kernel = gemm_kernel(best.kernel)
    assert kernel.mainloop == "mma" and not [*gemm.copies(best.workload, kernel)]
    whole, ragged = (predicted(H200, Gemm(m=1024, n=1024, k=k, dtype="f64", trans_b=True), kernel) for k in (1024, 1023))
    assert ragged.wavefronts > whole.wavefronts  # wavefronts: its elements come one by one


def test_parts_are_reduced_in_a_cluster_where_threads_multiply_too():
    """The rows of variant "cluster" need neither flags nor partial sums for eight parts or fewer, and those without are the same tiles."""
    rows = [row for row in gemm_kernels() if row.variant == "cluster"]
    assert {row.dtype for row in rows} == {"f32"}
    for row in rows:
        assert row.capability == 90 and row.reduces_in_cluster == 8
        problem = Gemm(m=256, n=256, k=4096, dtype="f32")
        need = {s: gemm.launch_bytes(problem, row, GpuSchedule(row.name, "split_k", s, False, 1)) for s in (8, 9)}
        assert need[8] == 0 < need[9]


def test_every_part_of_a_split_has_steps_to_do():
    for problem in (Gemm(m=64, n=64, k=100), Gemm(m=300, n=200, k=5000), Gemm(m=1, n=1, k=1)):
        found, launch = table(H200, problem, [SMALL, BLOG])
        steps = np.ceil(problem.k / found.block_k[launch.variant])
        split = launch.kind == SPLIT_K
        assert (steps[split] >= 2 * launch.splits[split]).all()
        assert (launch.splits[launch.kind == DATA_PARALLEL] == 1).all()


@pytest.mark.parametrize(
    ("layout", "copies"), [((False, True), 0), ((False, False), 1), ((True, True), 1), ((True, False), 2)], ids=["nt", "nn", "tt", "tn"]
)
def test_operands_without_rows_along_k_are_laid_out_again_for_kernels_that_need_them(layout, copies):
    kernel = msgspec.structs.replace(WGMMA, dtype="s8", block_k=128, k_major=True)
    problem = Gemm(m=1024, n=512, k=256, trans_a=layout[0], trans_b=layout[1], dtype="s8")
    found = columns(H200, problem, [kernel])
    assert found.conversions[0] == copies
    space = gemm.launch_bytes(problem, kernel, GpuSchedule(kernel.name, "data_parallel", 1, False, 1))
    moved = (layout[0] * 1024 + (not layout[1]) * 512) * 256
    assert space == (moved + 256 if moved else 0)
    assert found.conversion_bytes[0] == 2 * moved


def test_rows_that_are_not_aligned_are_laid_out_again():
    problem = Gemm(m=100, n=104, k=1001, dtype="f16")  # rows of A: 2002 bytes; of B: 208 = 13 x 16
    assert columns(H200, problem, [WGMMA]).conversions[0] == 1


def test_warps_take_rows_that_begin_anywhere_element_by_element():
    kernel = gemm_kernel("f16_mma_64x64x64_32x32_16x8_s3_c1x1")
    whole, ragged = Gemm(m=100, n=104, k=1024, dtype="f16"), Gemm(m=100, n=104, k=1001, dtype="f16")
    assert columns(H200, ragged, [kernel]).conversions[0] == 0
    assert float(columns(H200, ragged, [kernel]).iteration[0]) > float(columns(H200, whole, [kernel]).iteration[0])


def test_outputs_leave_one_by_one_where_rows_of_c_are_no_whole_vectors():
    whole, narrow = (Gemm(m=4096, n=n, k=64, trans_b=True, dtype="f16") for n in (4096, 4095))
    assert [bool(columns(H200, w, [WGMMA]).unaligned_c[0]) for w in (whole, narrow)] == [False, True]
    tiles = [float(predicted(H200, w, WGMMA).terms["prologue/epilogue"][0]) for w in (whole, narrow)]
    assert tiles[1] - tiles[0] >= 128 * 128 * H200.model.single_cycles.value  # of one tile, at least


def test_a_family_without_a_type_holds_for_types_that_have_no_own():
    row, families = conv_kernel("bf16_grouped"), H200.model.families
    assert row and launches.constants_of(H200, row.families) == ("conv_grouped", families["conv_grouped"])
    model = msgspec.structs.replace(H200.model, families=families | {"conv_grouped_bf16": families["mma"]})
    typed = msgspec.structs.replace(H200, model=model)
    assert launches.constants_of(typed, row.families) == ("conv_grouped_bf16", families["mma"])
