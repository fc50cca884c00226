# SPDX-License-Identifier: Apache-2.0
"""The cache simulator keeps what closed forms and conservation demand, streams in bounded memory, and refuses what is not a trace."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace
from oracles.traces import trace

from pysim.cachemodel.simulator.hierarchy import OPERANDS, PHASES, Cache, Chunk, Hierarchy, tag
from pysim.errors import MachineError, OperandError
from pysim.machine import load as machine

L1, L2 = Cache("L1", 64, 8, 64), Cache("L2", 1024, 8, 64)
ONE = Cache("L1", sets=1, ways=4, line_bytes=64)
QUICK = settings(deadline=None, database=None, max_examples=60)


def loads(hierarchy, lines, **how):
    """One 8-byte load of each of these 64-byte lines."""
    return hierarchy.simulate(np.asarray(lines) * 64, 8, False, **how)


# ---- closed forms ----


@pytest.mark.parametrize(("lines", "again"), [(512, 0), (513, 9), (576, 576), (1024, 1024)])
def test_a_second_pass_over_a_stream_misses_only_in_the_sets_that_it_overfills(lines, again):
    """64 sets x 8 ways hold 512 lines; LRU loses every line of a set that is asked for 9, and no line of the others."""
    result = loads(Hierarchy([L1, L2]), np.tile(np.arange(lines), 2))
    assert result["L1"].misses == lines + again
    assert result["L2"].loads == result["L1"].misses
    assert result["L2"].misses == lines


def test_a_stream_is_loaded_once_per_line_whatever_its_element():
    for size in (1, 4, 8, 64):
        addresses = np.arange(0, 1 << 16, size)
        result = Hierarchy([L1, L2]).simulate(addresses, size, False)
        assert result["L1"].loads == len(addresses)
        assert result["L1"].misses == result["L2"].misses == (1 << 16) // 64
        assert result["L2"].bytes_read == 1 << 16


@pytest.mark.parametrize(("ways", "passes"), [(48, 1), (44, 3)])
def test_a_five_point_stencil_loads_each_row_once_where_three_rows_fit_and_three_times_where_they_do_not(ways, passes):
    """Layer condition: rows of 16 lines; between two sweeps over a line, 16 + 15 + 16 others are used."""
    rows, columns = 20, 128
    i, j = (grid.ravel() for grid in np.meshgrid(np.arange(1, rows - 1), np.arange(1, columns - 1), indexing="ij"))
    points = np.stack([(i - 1, j), (i, j - 1), (i, j), (i, j + 1), (i + 1, j)]).transpose(2, 0, 1)
    addresses = (points[..., 0] * columns + points[..., 1]).ravel() * 8
    result = Hierarchy([Cache("L1", 1, ways, 64)]).simulate(addresses, 8, False)
    sweeps = rows if passes == 1 else 3 * (rows - 2)
    assert result["L1"].misses == sweeps * columns * 8 // 64


@pytest.mark.parametrize("tile", [8, 16])
def test_a_blocked_transpose_moves_each_line_once_and_an_unblocked_one_a_line_per_store(tile):
    n, lines = 64, 64 * 64 * 8 // 64
    order = np.arange(n * n).reshape(n // tile, tile, n // tile, tile).transpose(0, 2, 1, 3).ravel()
    cache = Hierarchy([Cache("L1", 1, 4 * tile, 64)])
    for walk, stores in ((order, lines), (np.arange(n * n), n * n)):
        source, target = walk * 8, (walk % n * n + walk // n) * 8 + (1 << 20)
        result = cache.simulate(np.stack([source, target], 1).ravel(), 8, np.tile([False, True], n * n), flush=True)["L1"]
        assert (result.load_misses, result.store_misses) == (lines, stores)
        assert result.writebacks == stores
        assert (result.bytes_read, result.bytes_written) == (64 * (lines + stores), 64 * stores)


# ---- what each counter means, on traces short enough to follow ----


def test_a_store_miss_reads_the_next_level_and_a_write_back_stores_to_it():
    result = Hierarchy([replace(ONE, ways=1), replace(ONE, name="L2", ways=2)]).simulate([0, 64, 128], 4, [True, False, False])
    first, second = result["L1"], result["L2"]
    assert (first.loads, first.stores, first.load_misses, first.store_misses, first.hits) == (2, 1, 2, 1, 0)
    assert (first.evictions, first.writebacks, first.bytes_read, first.bytes_written) == (2, 1, 192, 64)
    assert (second.loads, second.load_misses, second.stores, second.store_misses) == (3, 3, 1, 0)
    assert (second.evictions, second.writebacks) == (1, 0), "line 64 was the least recently used, and clean"


def test_an_access_that_straddles_lines_touches_each():
    result = Hierarchy([L1]).simulate([60, 0, 100], [8, 64, 200], [False, False, True])["L1"]
    assert (result.loads, result.stores) == (3, 4)
    assert (result.load_misses, result.store_misses) == (2, 3)


def test_write_through_sends_every_byte_on_and_never_writes_back():
    through = replace(ONE, write_back=False, write_allocate=False)
    result = Hierarchy([through, replace(ONE, name="L2")]).simulate([0, 4, 0, 62], [4, 4, 8, 4], [True, False, True, True], flush=True)
    first, second = result["L1"], result["L2"]
    assert (first.stores, first.store_misses, first.loads, first.load_misses) == (4, 2, 1, 1)
    assert (first.writebacks, first.bytes_written, first.bytes_read) == (0, 16, 64)
    assert (second.stores, second.loads, second.writebacks) == (4, 1, 2)


def test_an_inclusive_level_takes_its_lines_back():
    levels = [replace(ONE, ways=4), replace(ONE, name="L2", ways=2, inclusion="inclusive")]
    result = Hierarchy(levels).simulate([0, 64, 128], 4, [True, False, False])
    assert (result["L1"].invalidations, result["L1"].evictions, result["L1"].writebacks) == (1, 0, 1)
    assert (result["L2"].evictions, result["L2"].writebacks, result["L2"].stores) == (1, 1, 1)


def test_an_exclusive_level_holds_what_the_one_inside_displaced():
    hierarchy = Hierarchy([replace(ONE, ways=1), replace(ONE, name="L2", ways=1, inclusion="exclusive")])
    result = hierarchy.simulate([0, 64, 0], 4, [True, False, False])
    assert [hierarchy.contents(level)[0].tolist() for level in ("L1", "L2")] == [[0], [64]]
    assert (result["L2"].loads, result["L2"].misses, result["L2"].hits) == (3, 2, 1)
    assert (result["L2"].victims, result["L2"].stores) == (2, 0)
    assert hierarchy.contents("L1")[1].tolist() == [True], "the dirty line came back dirty"


def test_a_whole_line_written_back_need_not_be_fetched():
    outer = replace(ONE, name="L2", ways=2)
    addresses, stores = [0, 64, 128, 192], [True, False, False, False]
    counts = [
        Hierarchy([replace(ONE, ways=2), replace(outer, ways=1, fetch_on_writeback=fetch)]).simulate(addresses, 4, stores)["L2"]
        for fetch in (True, False)
    ]
    assert [c.bytes_read // 64 for c in counts] == [5, 4]
    assert [(c.stores, c.store_misses) for c in counts] == [(1, 1)] * 2


def test_a_store_drops_the_copies_of_other_cores_and_a_load_cleans_them():
    shared = replace(L2, shared=True)
    addresses, stores, cores = [0, 0, 0, 0], [False, True, False, True], [0, 1, 0, 0]
    result = Hierarchy([L1, shared], cores=2).simulate(addresses, 4, stores, cores=cores)
    assert (result["L1"].load_misses, result["L1"].store_misses) == (2, 1)
    assert result["L1"].invalidations == 2, "core 0's by the store of core 1, and that of core 1 by the last"
    assert (result["L1"].writebacks, result["L2"].stores) == (1, 1)
    apart = Hierarchy([L1, shared], cores=2).simulate(np.arange(64) * 64, 4, True, cores=np.arange(64) % 2)
    assert apart["L1"].invalidations == 0


def test_prefetchers_turn_the_misses_of_a_stream_into_hits():
    lines = np.arange(64 * 16)  # 16 pages of 64 lines
    nothing, next_line, stream = (loads(Hierarchy([replace(L1, prefetch=kind)]), lines)["L1"] for kind in (None, "next-line", "stream"))
    assert nothing.misses == 1024
    assert (next_line.misses, next_line.prefetches, next_line.prefetch_hits) == (16, 16 * 63, 16 * 63), "one miss a page"
    assert (stream.misses, stream.prefetches) == (16 * 3, 16 * 61), "the third line of a page is the second step"
    back = loads(Hierarchy([replace(L1, prefetch="stream", prefetch_degree=4)]), lines[::-1])["L1"]
    assert (back.misses, back.bytes_read) == (16 * 3, 1024 * 64)


def test_counts_are_split_by_operand_and_phase_and_a_line_belongs_to_its_last_writer():
    packed, output = tag("packed_input", "pack"), tag("output", "compute")
    result = Hierarchy([replace(ONE, ways=1)]).simulate([0, 64, 64, 128], 4, [True, True, True, False], tags=[packed, packed, output, 0])
    assert result.by("L1", "packed_input").stores == 2
    assert result.by("L1", "packed_input").writebacks == 1
    assert (result.by("L1", "output").hits, result.by("L1", "output").writebacks) == (1, 1)
    assert result.by("L1", phase="pack").stores == 2
    assert result.by("L1", "output", "pack").stores == 0
    assert result["L1"].loads == result.by("L1", 0, 0).loads == 1


# ---- properties ----


@QUICK
@given(st.integers(0, 1 << 40), st.integers(1, 64))
def test_lru_misses_fall_with_ways_at_fixed_sets(seed, sets):
    columns = trace(seed, 600, 1 << 14, 30)
    misses = [Hierarchy([Cache("L1", sets, ways, 32)]).simulate(*columns)["L1"].misses for ways in range(1, 12)]
    assert misses == sorted(misses, reverse=True)


@QUICK
@given(st.integers(0, 1 << 40), st.integers(1, 20), st.integers(1, 6), st.sampled_from(["lru", "fifo", "random"]))
def test_misses_lie_between_distinct_lines_and_requests(seed, sets, ways, policy):
    addresses, sizes, stores = trace(seed, 500, 1 << 13, 60)
    lines = {line for a, n in zip(addresses.tolist(), sizes.tolist(), strict=True) for line in range(a // 32, (a + n - 1) // 32 + 1)}
    c = Hierarchy([Cache("L1", sets, ways, 32, policy=policy)]).simulate(addresses, sizes, stores)["L1"]
    assert len(lines) <= c.misses <= c.loads + c.stores
    assert c.misses - c.evictions == min(c.misses, sum(min(ways, sum(line % sets == s for line in lines)) for s in range(sets)))


@QUICK
@given(st.integers(0, 1 << 40), st.sampled_from(["non-inclusive", "inclusive", "exclusive"]), st.booleans())
def test_bytes_are_conserved_between_levels(seed, inclusion, through):
    inner = replace(ONE, ways=3, write_back=not through, write_allocate=bool(seed % 2), prefetch="next-line")
    outer = Cache("L2", 5, 3, 64 if inclusion == "exclusive" else 128, inclusion="inclusive" if through else inclusion)
    result = Hierarchy([inner, outer, Cache("L3", 16, 2, 256)]).simulate(*trace(seed, 700, 1 << 12, 70), flush=True)
    assert result["L1"].bytes_read == result["L2"].loads * 64
    assert result["L2"].bytes_read == result["L3"].loads * outer.line_bytes
    assert result["L3"].bytes_read == (result["L3"].misses) * 256
    if not through and inner.write_allocate:
        assert result["L1"].bytes_written == (result["L2"].stores + result["L2"].victims) * 64
        assert result["L3"].bytes_written == result["L3"].writebacks * 256


@QUICK
@given(st.integers(0, 1 << 40), st.integers(1, 9), st.integers(1, 12), st.integers(0, 1 << 30))
def test_moving_a_trace_by_whole_rounds_of_every_level_changes_nothing(seed, first, second, rounds):
    addresses, sizes, stores = trace(seed, 400, 1 << 13, 50)
    hierarchy = Hierarchy([Cache("L1", first, 2, 32), Cache("L2", second, 3, 64)])
    moved = addresses + rounds * 64 * first * second
    assert hierarchy.simulate(addresses, sizes, stores).to_dict() == hierarchy.simulate(moved, sizes, stores).to_dict()


@QUICK
@given(st.integers(0, 1 << 40), st.sampled_from(["lru", "plru", "fifo", "random"]), st.integers(1, 2))
def test_inclusive_levels_contain_and_exclusive_ones_repeat_nothing(seed, policy, wider):
    inner = Cache("L1", 4, 4, 32, policy=policy)
    for inclusion in ("inclusive", "exclusive"):
        outer = Cache("L2", 4, 4, 32 * wider if inclusion == "inclusive" else 32, policy=policy, inclusion=inclusion)
        hierarchy = Hierarchy([inner, outer])
        hierarchy.simulate(*trace(seed, 500, 1 << 12, 20))
        held, outside = ({address // outer.line_bytes for address in hierarchy.contents(level)[0].tolist()} for level in ("L1", "L2"))
        assert held
        assert held <= outside if inclusion == "inclusive" else not held & outside


@QUICK
@given(st.integers(0, 1 << 40), st.lists(st.integers(0, 700), max_size=6))
def test_a_trace_in_chunks_counts_what_it_counts_in_one_piece(seed, cuts):
    columns = trace(seed, 700, 1 << 14, 70)
    hierarchy = Hierarchy([Cache("L1", 8, 2, 32, prefetch="stream"), Cache("L2", 16, 4, 64, policy="random")], seed=seed)
    pieces = (Chunk(*(column[a:b] for column in columns)) for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), 700], strict=True))
    assert hierarchy.run(pieces, flush=True).to_dict() == hierarchy.simulate(*columns, flush=True).to_dict()


def test_warm_caches_keep_their_lines_and_cold_ones_do_not():
    hierarchy = Hierarchy([L1])
    lines = np.arange(100)
    assert [loads(hierarchy, lines, warm=warm)["L1"].misses for warm in (False, True, False)] == [100, 0, 100]
    hierarchy.reset()
    assert hierarchy.contents("L1")[0].size == 0
    assert loads(hierarchy, lines, warm=True)["L1"].misses == 100


def test_a_flush_leaves_every_line_in_place_and_clean():
    hierarchy = Hierarchy([Cache("L1", 4, 2, 32), Cache("L2", 8, 4, 64)])
    columns = trace(7, 500, 1 << 12, 40)
    hierarchy.simulate(*columns)
    before = [hierarchy.contents(level) for level in ("L1", "L2")]
    hierarchy.simulate(*columns, flush=True)
    after = [hierarchy.contents(level) for level in ("L1", "L2")]
    assert all((a[0] == b[0]).all() for a, b in zip(before, after, strict=True))
    assert any(dirty.any() for _, dirty in before)
    assert not any(dirty.any() for _, dirty in after)


def test_random_replacement_repeats_with_its_seed_and_changes_with_another():
    columns = trace(3, 5000, 1 << 14, 8)
    one, same, other = (Hierarchy([Cache("L1", 4, 8, 64, policy="random")], seed=seed).simulate(*columns)["L1"] for seed in (1, 1, 2))
    assert one == same
    assert one.misses != other.misses


def test_policies_part_where_they_should():
    """Lines 0 1 2 3 0 4 into four ways: LRU then drops 1, FIFO 0, and the tree, whose bits point away from 0 and 1, 2."""
    for policy, lost in (("lru", 1), ("fifo", 0), ("plru", 2)):
        hierarchy = Hierarchy([replace(ONE, policy=policy)])
        loads(hierarchy, [0, 1, 2, 3, 0, 4])
        assert {0, 1, 2, 3, 4} - set((hierarchy.contents("L1")[0] // 64).tolist()) == {lost}, policy


# ---- streaming and machines ----


def test_a_long_trace_streams_through_bounded_memory():
    chunk, count = 1 << 18, 64

    def pieces():
        for number in range(count):
            yield Chunk((np.arange(chunk, dtype=np.int64) + number * chunk) * 8, np.full(chunk, 8, np.int32), np.zeros(chunk, bool))

    hierarchy = Hierarchy.from_machine("zen4")
    hierarchy.reset()
    tracemalloc.start()
    try:
        result = hierarchy.run(pieces(), warm=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.accesses == result["L1"].loads == chunk * count
    assert result["L1"].misses == chunk * count // 8
    assert peak < 6 * chunk * 13, f"{peak} bytes, chunks are {chunk * 13}"


@pytest.mark.parametrize("name", [name for name in machine.names() if not isinstance(machine.load_any(name), machine.Gpu)])
def test_a_machine_file_is_simulated_with_its_own_geometry(name):
    hierarchy = Hierarchy.from_machine(name, cores=2)
    levels = machine.load(name).levels
    assert [cache.size_bytes for cache in hierarchy.levels] == [level.size_bytes for level in levels]
    assert [cache.shared for cache in hierarchy.levels] == [level.shared for level in levels]
    lines = np.arange(levels[0].size_bytes // levels[0].line_bytes) * levels[0].line_bytes
    result = hierarchy.simulate(np.tile(lines, 2), 1, False)
    assert result[levels[0].name].hits == result[levels[0].name].misses == len(lines)


def test_results_say_what_they_hold():
    result = Hierarchy([L1, L2]).simulate([0, 0], 4, [True, False])
    assert list(result) == ["L1", "L2"]
    assert result.to_dict()["L1"] == asdict(result["L1"]) | {"hits": 1, "misses": 1}
    assert "2 accesses; L1: 2 requests, 1 misses" in repr(result)


# ---- what is refused ----

NO_CACHE = {
    "no sets": ({"sets": 0}, "sets is 0; it should be a whole number from 1"),
    "a float": ({"ways": 2.0}, "ways is 2.0; it should be a whole number"),
    "too many lines": ({"sets": 1 << 29}, "536870912 sets of 8 ways; both should be at least 1, and the lines below 2^32"),
    "an odd line": ({"line_bytes": 48}, "line_bytes is 48; it should be a power of two"),
    "three ways of plru": ({"ways": 3, "policy": "plru"}, "a PLRU tree needs 1, 2, 4, 8, 16, 32 or 64 ways, not 3"),
    "a policy": ({"policy": "lur"}, 'no policy of cache "L1" is named "lur"; did you mean "lru"?'),
    "a prefetcher": ({"prefetch": "next_line"}, 'did you mean "next-line"?'),
    "an inclusion": ({"inclusion": "exclusiv"}, 'did you mean "exclusive"?'),
    "a degree": ({"prefetch": "stream", "prefetch_degree": 17}, "prefetch_degree is 17; it should be 1..16"),
}


@pytest.mark.parametrize(("change", "message"), NO_CACHE.values(), ids=NO_CACHE)
def test_a_cache_that_cannot_be_is_refused_by_name(change, message):
    with pytest.raises(MachineError) as error:
        Hierarchy([Cache(**({"name": "L1", "sets": 64, "ways": 8, "line_bytes": 64} | change))]).reset()
    assert message in str(error.value)
    assert "L1" in str(error.value) or "cache level 1" in str(error.value)


NO_HIERARCHY = {
    "no level": ([], "0 cache levels; 1..8 can be simulated"),
    "nine levels": ([replace(L1, name=f"L{k}") for k in range(9)], "9 cache levels"),
    "a name twice": ([L1, L1], "each name may stand once"),
    "a shrinking line": ([L1, replace(L2, line_bytes=32)], "cache level 2: line_bytes 32 is less than 64 of the level inside it"),
    "an inclusive first": ([replace(L1, inclusion="inclusive")], "has no level inside it"),
    "private around shared": ([replace(L1, shared=True), L2], "cache level 2 is private, but the level inside it is shared"),
    "exclusive, wider": ([L1, replace(L2, line_bytes=128, inclusion="exclusive")], "write-back with equal lines"),
    "exclusive, through": ([replace(L1, write_back=False), replace(L2, inclusion="exclusive")], "write-back with equal lines"),
    "exclusive, ahead": ([L1, replace(L2, inclusion="exclusive", prefetch="stream")], "it prefetches nothing"),
}


@pytest.mark.parametrize(("levels", "message"), NO_HIERARCHY.values(), ids=NO_HIERARCHY)
def test_levels_that_do_not_fit_each_other_are_refused(levels, message):
    with pytest.raises(MachineError) as error:
        Hierarchy(levels).reset()
    assert message in str(error.value)


@pytest.mark.parametrize("levels", [None, 5, "L1", [L1, 5]])
def test_levels_that_are_no_caches_are_refused(levels):
    with pytest.raises(MachineError, match="expected a list of Cache values, L1 first"):
        Hierarchy(levels)


def test_cores_seeds_levels_and_sizes_out_of_range_are_refused():
    with pytest.raises(MachineError, match="cores of a cache hierarchy is 0"):
        Hierarchy([L1], cores=0)
    with pytest.raises(MachineError, match="seed of a cache hierarchy is -1"):
        Hierarchy([L1], seed=-1)
    with pytest.raises(MachineError, match=r'no cache level is named "L11"; did you mean "L1"\?'):
        loads(Hierarchy([L1]), [0])["L11"]
    with pytest.raises(MachineError, match="no operand is named"):
        tag("inputs", "pack")
    with pytest.raises(MachineError, match="core is 1; it should be a whole number from 0 to 0"):
        Hierarchy([L1]).contents("L1", core=1)
    with pytest.raises(MachineError, match="bytes; this machine has"):
        loads(Hierarchy([replace(L1, sets=1 << 28)], cores=256), [0])


NO_TRACE = {
    "a negative address": (([-8], 4, False), "access 0: 4 bytes at address -8"),
    "an address too high": (([0, 1 << 56], 1, False), "access 1: 1 bytes at address 72057594037927936"),
    "an end too high": (([(1 << 56) - 4], 5, False), "5 bytes at address"),
    "no bytes": (([0, 0], [4, 0], False), "access 1: 0 bytes"),
    "the least size": (([0], [-(1 << 31)], False), "access 0: -2147483648 bytes"),
    "a store of 2": (([0], 4, [2]), "is_write is 2; it should be 0 or 1"),
    "floats": (([0.5], 4, False), "chunk 0: addresses: dtype is float64; it should be whole numbers"),
    "words": ((["a"], 4, False), "whole numbers"),
    "a matrix": (([[0]], 4, False), "addresses: shape is (1, 1); it should be one dimension"),
    "lengths apart": (([0, 8], [4, 4, 4], False), "sizes: shape is (3,); it should be (2,), one for each address, or a single number"),
    "a size beyond int32": (([0], 1 << 31, False), "they should fit int32"),
    "unsigned beyond int64": ((np.array([1 << 63], np.uint64), 1, False), "they should fit int64"),
}


@pytest.mark.parametrize(("columns", "message"), NO_TRACE.values(), ids=NO_TRACE)
def test_what_is_no_trace_is_refused_and_counts_nothing(columns, message):
    hierarchy = Hierarchy([L1])
    loads(hierarchy, [1, 2, 3])
    before = hierarchy.contents("L1")[0]
    with pytest.raises(OperandError) as error:
        hierarchy.simulate(*columns, warm=True)
    assert message in str(error.value)
    assert (hierarchy.contents("L1")[0] == before).all()


def test_bad_tags_and_cores_are_refused():
    hierarchy = Hierarchy([L1], cores=2)
    cases = ({"tags": 8}, "tag 0x08"), ({"tags": 0x40}, "tag 0x40"), ({"cores": 2}, "core 2, but the hierarchy has cores 0..1")
    for wrong, message in cases:
        with pytest.raises(OperandError, match=message):
            loads(hierarchy, [0], **wrong)
    assert tag("bias", "store") == OPERANDS.index("bias") | PHASES.index("store") << 4


def test_an_access_may_end_at_the_last_address():
    result = Hierarchy([Cache("L1", 3, 2, 1)]).simulate([(1 << 56) - 4], 4, False)
    assert result["L1"].loads == 4


def test_an_empty_trace_counts_nothing():
    assert set(asdict(Hierarchy([L1]).simulate([], [], [])["L1"]).values()) == {0}
    assert Hierarchy([L1]).run([]).accesses == 0
