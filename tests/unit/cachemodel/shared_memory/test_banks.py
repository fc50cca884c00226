# SPDX-License-Identifier: Apache-2.0
"""The shared-memory bank model equals the hardware, and the published kernels' numbers come out of it."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from checkout import ROOT
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from pysim.cachemodel import SharedMemory
from pysim.cachemodel.shared_memory import patterns
from pysim.cachemodel.shared_memory.banks import rules
from pysim.cachemodel.shared_memory.layout import offsets
from pysim.cachemodel.shared_memory.tile import addresses, tally
from pysim.cli import main
from pysim.errors import MachineError, OperandError, ProblemError
from pysim.explain.bankmap import picture, svg, text

MEASURED = json.loads((ROOT / "tests" / "data" / "shared_memory_h200.json").read_text())
HOPPER = SharedMemory()
LANE = np.arange(32)

widths = st.sampled_from([4, 8, 16])
masks = st.lists(st.booleans(), min_size=32, max_size=32)


@st.composite
def instructions(draw):
    """A width and 32 aligned addresses: few distinct ones, many, or pairs of lanes that agree."""
    width = draw(widths)
    slots = draw(st.lists(st.integers(0, draw(st.sampled_from([7, 63, 2047]))), min_size=32, max_size=32))
    partner = draw(st.sampled_from([0, 0, 1, 2, 3]))
    return width, [width * slots[lane & ~partner] for lane in range(32)]


def by_hand(lanes, width, store, active):
    """The rule of 32 banks of 4 bytes, written out with dicts and sets."""
    size = {4: 32, 8: 16, 16: 8}[width]
    if not store:
        for pair in (1, 2):
            both = [lane for lane in range(32) if active[lane] and active[lane ^ pair]]
            if all(lanes[lane] == lanes[lane ^ pair] for lane in both):
                size = min(32, 2 * {4: 32, 8: 16, 16: 8}[width])
    groups = []
    for start in range(0, 32, size):
        words: dict[int, set[int]] = {}
        for lane in range(start, start + size):
            for byte in range(lanes[lane], lanes[lane] + width, 4) if active[lane] else ():
                words.setdefault(byte // 4 % 32, set()).add(byte // 4)
        groups.append(max(map(len, words.values()), default=0))
    return tuple(groups)


def measured(width):
    """The measured patterns of a width as arrays: addresses, active lanes, the rows themselves."""
    rows = [row for row in MEASURED["patterns"] if row["width"] == width]
    lanes = np.array([row["addr"] for row in rows])
    return lanes, lanes >= 0, rows


def per_instruction(name, memory=HOPPER):
    """Wavefronts and minimum of one instruction of each access, which are all alike."""
    results = {}
    for one in tally(patterns.pattern(name), memory):
        assert one.wavefronts % one.instructions == 0
        results[one.access] = one.wavefronts // one.instructions, one.minimum // one.instructions
    return results


def test_every_measured_pattern_is_exact_for_wavefronts_and_conflicts():
    assert len(MEASURED["patterns"]) == 390
    for row in MEASURED["patterns"]:
        active = [address >= 0 for address in row["addr"]]
        for prefix, store in (("ld", False), ("st", True)):
            cost = HOPPER.wavefronts(row["addr"], row["width"], store, active)
            expected = row[f"{prefix}_wavefronts"], row[f"{prefix}_conflicts"]
            assert (cost.total, cost.conflicts) == expected, (row["name"], row["width"], prefix)


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize(("prefix", "store"), [("ld", False), ("st", True)])
def test_counting_many_instructions_at_once_is_exact_too(width, prefix, store):
    lanes, active, rows = measured(width)
    counts = HOPPER.count(lanes, width, store, active)
    assert counts.total.tolist() == [row[f"{prefix}_wavefronts"] for row in rows]
    assert counts.conflicts.tolist() == [row[f"{prefix}_conflicts"] for row in rows]


@given(instructions(), st.booleans(), masks)
@settings(max_examples=300, deadline=None)
def test_the_model_equals_the_rule_written_out_by_hand(instruction, store, active):
    width, lanes = instruction
    for mask in ([True] * 32, active):
        groups = by_hand(lanes, width, store, mask)
        cost = HOPPER.wavefronts(lanes, width, store, mask)
        assert (cost.per_group, cost.total) == (groups, sum(groups))
        assert cost.minimum == sum(cost > 0 for cost in groups)
        many = HOPPER.count([lanes, lanes], width, store, [mask, mask])
        assert (many.total.tolist(), many.minimum.tolist()) == ([cost.total] * 2, [cost.minimum] * 2)


def test_whether_an_access_is_a_store_is_true_or_false():
    with pytest.raises(OperandError, match='store is "yes"; expected True or False'):
        HOPPER.wavefronts(range(0, 512, 16), 16, "yes")


@given(instructions(), st.booleans(), masks, st.integers(0, 1000))
@settings(max_examples=100, deadline=None)
def test_moving_every_address_by_whole_rows_of_banks_changes_nothing(instruction, store, active, bank_rows):
    width, lanes = instruction
    moved = [address + 128 * bank_rows for address in lanes]
    assert HOPPER.wavefronts(moved, width, store, active) == HOPPER.wavefronts(lanes, width, store, active)


@given(instructions(), masks)
@settings(max_examples=100, deadline=None)
def test_a_store_costs_at_least_what_a_load_costs(instruction, active):
    width, lanes = instruction
    assert HOPPER.wavefronts(lanes, width, True, active).total >= HOPPER.wavefronts(lanes, width, False, active).total


@given(instructions(), st.booleans(), masks)
@settings(max_examples=100, deadline=None)
def test_the_total_is_never_below_the_minimum_nor_above_the_words(instruction, store, active):
    width, lanes = instruction
    cost = HOPPER.wavefronts(lanes, width, store, active)
    assert cost.minimum <= cost.total <= max(1, sum(active)) * width // 4
    assert (cost.total == 0) == (not any(active))


@given(instructions(), masks, st.data())
@settings(max_examples=100, deadline=None)
def test_permuting_lanes_inside_a_group_changes_nothing(instruction, active, data):
    width, lanes = instruction
    size = 128 // width
    order = [lane for start in range(0, 32, size) for lane in data.draw(st.permutations(range(start, start + size)))]
    before = HOPPER.wavefronts(lanes, width, True, active)
    after = HOPPER.wavefronts([lanes[lane] for lane in order], width, True, [active[lane] for lane in order])
    assert before == after
    mask = data.draw(st.integers(0, size - 1))  # an exclusive or keeps the pairs that loads look at
    permuted = [lanes[lane ^ mask] for lane in range(32)], [active[lane ^ mask] for lane in range(32)]
    load = HOPPER.wavefronts(lanes, width, False, active)
    assert HOPPER.wavefronts(permuted[0], width, False, permuted[1]).total == load.total


def test_addresses_of_inactive_lanes_are_not_looked_at():
    active = LANE < 8
    assert HOPPER.wavefronts(np.where(active, 16 * LANE, -7), 16, active=active).per_group == (1, 0, 0, 0)
    assert HOPPER.wavefronts([-1] * 32, 4, active=[False] * 32).total == 0


def test_the_minimum_of_each_width_is_one_two_and_four_wavefronts():
    for width, least in ((4, 1), (8, 2), (16, 4)):
        cost = HOPPER.wavefronts(width * LANE, width)
        assert (cost.total, cost.minimum, cost.conflicts) == (least, least, 0)
    assert HOPPER.wavefronts(16 * LANE).per_group == (1, 1, 1, 1)
    assert HOPPER.wavefronts(128 * LANE, 4).conflicts == 31


def test_every_generation_has_its_rule_with_sources():
    table = rules()
    assert set(table.rules) >= {"volta", "turing", "ampere", "hopper"}
    for name, row in table.rules.items():
        memory = SharedMemory(rule=name)
        assert (memory.banks, memory.bank_bytes) == (row.banks, row.bank_bytes)
        for part in (row, row.loads, row.stores):
            assert part.source in table.sources
    assert {table.rules["hopper"].loads.kind, table.rules["hopper"].stores.kind} == {"measured"}
    assert (table.rules["turing"].loads.kind, table.rules["turing"].stores.kind) == ("manual", "assumed")
    assert {table.rules["ampere"].loads.kind, table.rules["ampere"].stores.kind} == {"assumed"}


def test_other_geometries_are_what_ifs():
    assert SharedMemory(banks=16).wavefronts(4 * LANE, 4).per_group == (1, 1)
    assert SharedMemory(bank_bytes=8).wavefronts(8 * LANE, 8).per_group == (1,)
    assert SharedMemory(banks=64).wavefronts(256 * LANE, 4).total == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"addresses": range(31)}, r"shape \(31,\); it should be \(32,\)"),
        ({"addresses": [16 * i for i in range(31)] + [-16]}, "lane 31 has the address -16"),
        ({"addresses": 8 * LANE}, "lane 1 has the address 8, not a multiple of the width 16; 0 or 16 is aligned"),
        ({"addresses": 4.0 * LANE}, "type float64; they should be integers"),
        ({"addresses": [[1], [2, 3]]}, "addresses is not an array"),
        ({"addresses": [1 << 60] * 32}, "below 2\\^48"),
        ({"addresses": LANE, "width": 2}, "width is 2 bytes per lane; it should be one of 4, 8, 16"),
        ({"addresses": LANE, "width": 4.0}, "width is 4.0"),
        ({"addresses": 16 * LANE, "active": [True] * 31}, r"active has the shape \(31,\)"),
        ({"addresses": 16 * LANE, "active": [0.5] * 32}, "active has the type float64"),
        ({"addresses": 16 * LANE, "active": [2] * 32}, "one boolean per lane"),
    ],
)
def test_a_wrong_instruction_is_refused_and_the_lane_is_named(arguments, message):
    with pytest.raises(OperandError, match=message):
        HOPPER.wavefronts(**arguments)


def test_a_wrong_memory_is_refused():
    with pytest.raises(MachineError, match='did you mean "hopper"'):
        SharedMemory(rule="hoper")
    for wrong in ({"banks": 0}, {"banks": 31}, {"banks": -32}, {"bank_bytes": 0}, {"bank_bytes": 16}):
        with pytest.raises(OperandError, match="it should be"):
            SharedMemory(**wrong)
    with pytest.raises(OperandError, match=r"shape \(2, 31\)"):
        HOPPER.count(np.zeros((2, 31), int), 4)
    with pytest.raises(OperandError, match="lane 3 of instruction 1"):
        HOPPER.count(4 * np.array([LANE, np.where(LANE == 3, -1, LANE)]), 4)


# ---- published kernels ----


def test_the_opencnn_output_layouts_cost_what_their_table_says():
    for name, size in (("reference", 40960), ("optsts64", 35328), ("optsts64-compact", 32768)):
        costs = per_instruction(f"opencnn-{name}")
        assert patterns.pattern(f"opencnn-{name}").bytes == size
        assert costs.pop("load") == (1, 1)
        assert set(costs.values()) == {(2, 2)}
    for name in ("reference-unpadded", "optsts64-unpadded"):
        costs = per_instruction(f"opencnn-{name}")
        assert costs.pop("load") == (1, 1)
        assert set(costs.values()) == {(8, 2)}


def test_the_opencnn_layouts_are_the_published_formulas():
    t, b, h, q = LANE % 8 // 2, LANE % 2, LANE // 16, LANE // 8 % 2
    stores = {name: patterns.pattern(f"opencnn-{name}") for name in ("reference", "optsts64", "optsts64-compact")}
    lanes = {name: addresses(tile, tile.accesses[0]) for name, tile in stores.items()}
    for warp in range(8):
        for half in range(2):
            for slot in range(2):
                for e in range(2):
                    row = slot * 16 + warp + 8 * half
                    padded = 8 * (row * 138 + 34 * t + b + 2 * h + 4 * e + 8 * q)
                    compact = 8 * (row * 128 + 32 * t + (b + 2 * h + 4 * e + 8 * q + 2 * t) % 16)
                    number = ((warp * 2 + half) * 2 + slot) * 2 + e
                    for d in range(2):
                        assert (lanes["optsts64"][2 * number + d] == padded + 128 * d).all()
                        assert (lanes["optsts64-compact"][2 * number + d] == compact + 128 * d).all()
                    reference = 16 * (row * 40 + 10 * t + b + 2 * h + 4 * e)
                    number = ((warp * 2 + half) * 4 + slot) * 2 + e
                    assert (lanes["reference"][number] == np.where(q == 0, reference, 0)).all()
    loads = addresses(stores["optsts64-compact"], stores["optsts64-compact"].accesses[1])
    for warp in range(8):
        row = 4 * (128 * 2 * 16 * (warp // 4) + 64 * (warp % 4) + (LANE + 4 * (warp % 4)) % 32)
        assert (loads[warp * 32] == row).all()
        assert (loads[warp * 32 + 1] == row + 128).all()


@pytest.mark.parametrize("name", ["optSTS64", "compact", "reference", "reference_nopad"])
def test_the_opencnn_patterns_hold_the_addresses_that_were_measured(name):
    known = {"compact": "optsts64-compact", "reference_nopad": "reference-unpadded"}.get(name, name.lower())
    tile = patterns.pattern(f"opencnn-{known}")
    ours = set()
    for access in tile.accesses[:-1]:
        active = np.ones_like(access.index, bool) if access.active is None else access.active
        ours |= {tuple(row) for row in np.where(active, addresses(tile, access), -1).tolist()}
    rows = [row for row in MEASURED["patterns"] if re.fullmatch(f"opencnn_{name}_e[01][dq][01]", row["name"])]
    assert len(rows) == 4
    for row in rows:
        assert tuple(row["addr"]) in ours


def test_the_opencnn_compact_layout_is_bijective():
    compact, padded = (offsets(patterns.pattern(f"opencnn-optsts64{form}").layout) for form in ("-compact", ""))
    assert sorted(compact.ravel()) == list(range(compact.size)) and padded.max() >= padded.size


def test_the_opencnn_main_loop_needs_the_pair_rule_for_two_wavefronts_a_load():
    for name in ("opencnn-filters", "opencnn-input"):
        assert per_instruction(name) == {"store": (1, 1), "load fragments": (2, 2)}
        tile = patterns.pattern(name)
        loads = tile.accesses[1]
        without = HOPPER.count(addresses(tile, loads), 16, store=True)
        assert set(without.total) == {4}


def test_the_im2win_kernel_stores_eight_ways_and_loads_its_input_with_twice_the_wavefronts():
    assert per_instruction("im2win-input") == {"store": (8, 1), "load fragments": (8, 4)}
    assert per_instruction("im2win-filters") == {"store": (8, 1), "load fragments": (2, 2)}


def test_cutlass_fragment_loads_are_free_of_conflicts_for_every_policy():
    names = [name for name in patterns.names() if name.startswith("cutlass-")]
    assert len(names) == 72
    for name in names:
        stores, loads = tally(patterns.pattern(name), HOPPER)
        assert loads.conflicts == 0, name
        if name.startswith("cutlass-sgemm") and name.endswith("crosswise"):
            assert stores.conflicts == 0, name


def test_cutlass_huge_sgemm_has_256_threads_and_tiles_padded_by_four_floats():
    tile = patterns.pattern("cutlass-sgemm-huge-a-crosswise")
    store, load = tile.accesses
    assert len(load.index) == 8 * 8 * 2  # 256 threads, 8 slices, two vectors of 4 for 8 items
    assert len(store.index) * 32 == 8 * 128
    assert tile.bytes == 8 * (128 + 4) * 4
    assert load.width == 16


@pytest.mark.parametrize("name", patterns.names())
def test_every_pattern_reads_only_what_it_stores(name):
    tile = patterns.pattern(name)
    written, read = np.zeros(tile.elements, bool), np.zeros(tile.elements, bool)
    for access in tile.accesses:
        for part in range(access.width // tile.element_bytes):
            lanes = access.index if access.active is None else access.index[access.active]
            (written if access.store else read)[lanes + part] = True
    assert written.all()
    assert not (read & ~written).any()
    assert read.all()


@pytest.mark.parametrize(("size", "ways"), [(32, 2), (64, 4), (128, 8)])
def test_tma_swizzles_make_columns_of_chunks_free_of_conflicts(size, ways):
    assert per_instruction(f"tma-{size}b") == {"store rows": (4, 4), "load columns": (4, 4)}
    assert per_instruction(f"tma-{size}b-unswizzled") == {"store rows": (4, 4), "load columns": (4 * ways, 4)}
    tile = patterns.pattern(f"tma-{size}b")
    byte = 16 * np.arange(tile.elements)
    expected = byte ^ (((byte >> 7) & (size // 16 - 1)) << 4)
    assert (16 * np.asarray(tile.maps[0](np.arange(tile.elements))) == expected).all()


def test_one_float_of_padding_frees_the_transposed_tile():
    assert per_instruction("transpose-32x32") == {"store rows": (1, 1), "load columns": (32, 1)}
    assert per_instruction("transpose-32x33") == {"store rows": (1, 1), "load columns": (1, 1)}


def test_an_unknown_pattern_is_refused_with_the_nearest_names():
    with pytest.raises(ProblemError, match="did you mean opencnn-optsts64"):
        patterns.pattern("opencnn-optsts46")


# ---- pictures ----


@given(instructions(), st.booleans(), masks)
@settings(max_examples=60, deadline=None)
def test_a_picture_has_one_row_per_wavefront_and_every_active_lane(instruction, store, active):
    width, lanes = instruction
    drawn = picture(HOPPER, lanes, width, store, active)
    assert [len(group.waves) for group in drawn.groups] == list(drawn.wavefronts.per_group)
    seen = [lane for group in drawn.groups for wave in group.waves for lanes in wave.values() for lane in lanes]
    assert sorted(seen) == sorted(lane for lane in range(32) if active[lane] for _ in range(width // 4))
    for group in drawn.groups:
        for wave in group.waves:
            for bank, shared in wave.items():
                assert all((bank - lanes[lane] // 4) % 32 < width // 4 for lane in shared)


def test_the_drawn_text_shows_lanes_banks_and_the_cost():
    drawn = text(picture(HOPPER, 8 * LANE, 4, title="stride"))
    first, head, wave, extra = drawn.splitlines()
    assert first == "LDS.32 stride: 2 wavefronts, minimum 1, 1 conflict"
    assert head.split() == ["lanes", "wave", *map(str, range(32))]
    assert wave.split()[:6] == ["0-31", "1", "0", ".", "1", "."]
    assert extra.split()[:4] == ["2", "16", ".", "17"]
    shared = text(picture(HOPPER, [0] * 32, 4, active=LANE < 31), columns=80)
    assert max(map(len, shared.splitlines())) <= 80
    assert "0+" in shared
    assert "none" in text(picture(HOPPER, 16 * LANE, active=LANE < 8))


def test_the_svg_is_well_formed_and_has_a_cell_per_bank_and_wavefront():
    drawn = [picture(HOPPER, 128 * LANE, 4, title="<column> & row"), picture(HOPPER, 16 * LANE)]
    root = ElementTree.fromstring(svg('a "title" <with> &', drawn))
    tag = "{http://www.w3.org/2000/svg}"
    cells = [one for one in root.iter(f"{tag}rect") if one.get("class") in ("even", "odd", "conflict", "idle")]
    assert len(cells) == 3 + (32 + 4) * 32
    assert sum(one.get("class") == "conflict" for one in cells) == 1 + 31
    words = [one.text for one in root.iter(f"{tag}text")]
    assert "LDS.32 <column> & row: 32 wavefronts, minimum 1, 31 conflicts" in words
    assert "LDS.128: 4 wavefronts, minimum 4, no conflict" in words


# ---- command ----


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["banks", *arguments], prog_name="pysim")
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    return result


def test_the_command_prints_one_json_document():
    document = json.loads(run("opencnn-optsts64*", "--fix", "--json").stdout)
    assert document["schema"] == 1
    found = {one["name"]: one for one in document["banks"]}
    assert set(found) == {f"opencnn-optsts64{suffix}" for suffix in ("", "-compact", "-unpadded")}
    plain = found["opencnn-optsts64-unpadded"]
    assert (plain["wavefronts"], plain["minimum"], plain["conflicts"]) == (5120, 2048, 3072)
    assert plain["assumed"] == []
    store = plain["accesses"][0]
    cost = HOPPER.wavefronts(store["worst"]["addresses"], store["width"], store["store"])
    assert list(cost.per_group) == store["worst"]["per_group"] == [4, 4]
    best = plain["fixes"]["options"][0]
    assert (best["wavefronts"], best["bytes"], best["proof"]["bijective"]) == (2048, 32768, True)
    assert json.loads(run("transpose-32x32", "--rule", "ampere", "--json").stdout)["banks"][0]["assumed"] == [
        "loads",
        "stores",
    ]


def test_the_command_draws_text_and_svg(tmp_path):
    path = tmp_path / "out.svg"
    shown = run("transpose-32x32", "--fix", "--svg", str(path)).stdout
    assert "LDS.32 load columns: 32 wavefronts, minimum 1, 31 conflicts" in shown
    assert "best: swizzle(5,0,5), 64 wavefronts (no conflicts)" in shown
    assert "1,024 elements in 1,024 places" in shown
    assert "with swizzle(5,0,5)" in path.read_text()
    ElementTree.fromstring(path.read_text())


def test_the_command_reads_lane_layouts_and_filters_named_ones():
    strided = json.loads(run("32:32", "--width", "4", "--json").stdout)["banks"][0]
    assert (strided["wavefronts"], strided["accesses"][0]["instruction"]) == (32, "LDS.32")
    half = json.loads(run("(4,4):(1,8)", "--store", "--json").stdout)["banks"][0]
    assert (half["accesses"][0]["instruction"], half["accesses"][0]["worst"]["per_group"]) == ("STS.128", [2, 2, 0, 0])
    stores = json.loads(run("im2win-input", "--store", "--json").stdout)["banks"][0]["accesses"]
    assert [one["instruction"] for one in stores] == ["STS.32"]
    wide = json.loads(run("im2win-input", "--width", "16", "--json").stdout)["banks"][0]["accesses"]
    assert [one["instruction"] for one in wide] == ["LDS.128"]


def test_the_command_lists_layouts_and_rules():
    shown = run("--list").stdout
    assert "transpose-32x33" in shown
    assert re.search(r"ampere +8.x +assumed +assumed", shown)
    document = json.loads(run("--list", "--json").stdout)
    assert len(document["banks"]) == len(patterns.names())
    assert set(document["rules"]) == set(rules().rules)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no layout is given"),
        (["transpose-32x31"], "did you mean transpose-32x3"),
        (["transpose-32x32", "--width", "16"], "has no access of 16 bytes per lane; it has LDS.32, STS.32"),
        (["transpose-32x32", "--rule", "hoper"], 'did you mean "hopper"'),
        (["/no/such/file.toml"], "cannot be read: No such file"),
        (["33:1"], "33 places; a warp has 32 lanes"),
        (["4,8:1"], "one stride per mode"),
        (["0:1"], "sizes"),
        (["32:9999999"], "bytes; 262144 are allowed"),
        (["32:1", "--svg", "/no/such/folder/out.svg"], "/no/such/folder/out.svg cannot be written: there is no folder /no/such/folder\n"),
        (["setup"], "a file ends in .toml or .json"),
        (["32:1", "--width", "3"], "Invalid value"),
    ],
)
def test_wrong_usage_ends_with_code_2_and_one_sentence(arguments, message):
    result = run(*arguments, code=2)
    assert message in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["(32):(-4)", "((2,4),8):((1,2)", "8:x"])
def test_a_map_of_lanes_that_is_none_is_answered_with_one_that_is_right(name):
    with pytest.raises(ProblemError, match=r"is not a map from lanes to places; expected .* e\.g\. \(8,4\):\(4,1\)"):
        patterns.pattern(name)
