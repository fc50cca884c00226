# SPDX-License-Identifier: Apache-2.0
"""Machine files: what is shipped holds, and what does not hold is refused."""

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from checkout import ROOT

from pysim.cachemodel.shared_memory.banks import rules
from pysim.errors import MachineError
from pysim.machine.cpu import Core, Machine
from pysim.machine.gpu import Gpu, SharedRule
from pysim.machine.load import SHIPPED, load, load_any, loads, names
from pysim.machine.quantity import facts
from pysim.registry.cpu import kernels, probed_dtype

CPUS = (
    *("apple-m1-pro", "emerald-rapids", "granite-rapids", "graviton4"),
    *("power10-e1050", "sapphire-rapids", "xeon-4208", "zen3", "zen4", "zen5"),
)
GPUS = ("a100", "b200", "h100", "h200", "l40s", "rtx-2080ti", "rtx-3090", "rtx-4090", "v100")
VALID = (SHIPPED / "zen4.toml").read_text()
VALID_GPU = (SHIPPED / "h200.toml").read_text()


def changed(old: str, new: str, text: str = VALID) -> str:
    assert old in text, f"the test's own text has no {old!r}"
    return text.replace(old, new, 1)


def with_value(name: str, value: float, text: str = VALID) -> str:
    """The text with another value for the first number of that name."""
    new, count = re.subn(rf"(?m)^{name} = \{{ value = [^,]+,", f"{name} = {{ value = {value},", text, count=1)
    assert count, f"the test's own text has no {name}"
    return new


def refusal(text: str) -> str:
    with pytest.raises(MachineError) as caught:
        loads(text, "my.toml")
    return str(caught.value)


# What is shipped


def test_the_machines_of_the_papers_and_of_the_baselines_are_shipped() -> None:
    assert names() == sorted(CPUS + GPUS)


@pytest.mark.parametrize("name", CPUS + GPUS)
def test_every_shipped_file_loads_and_every_number_names_a_source_that_says_something(name: str) -> None:
    machine = load_any(name)
    assert machine.name == name
    assert isinstance(machine, Gpu) == (name in GPUS)
    for path, fact in facts(machine):
        assert fact.source in machine.sources, path
    used = {fact.source for _, fact in facts(machine)} | {getattr(machine, "source", "")}
    assert set(machine.sources) - used == set(), "sources that no number names"


@pytest.mark.parametrize("name", CPUS + GPUS)
def test_an_assumed_number_says_why(name: str) -> None:
    machine = load_any(name)
    for path, fact in facts(machine):
        source = machine.sources[fact.source]
        assert fact.kind != "assumed" or source.note, path
        assert fact.kind != "measured" or source.command or source.file or source.url, path


@pytest.mark.parametrize("name", CPUS + GPUS)
def test_files_that_constants_were_fitted_to_are_in_the_repository(name: str) -> None:
    machine = load_any(name)
    fitted = {fact.source for _, fact in facts(machine) if fact.kind == "fitted"}
    files = [file for source in fitted for file in (machine.sources[source].file or "missing").split(", ")]
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("name", CPUS)
def test_levels_grow_and_slow_down_away_from_the_core(name: str) -> None:
    machine = load(name)
    sizes = [level.size_bytes for level in machine.levels]
    latencies = [level.latency_cycles.value for level in machine.levels] + [machine.memory.latency_cycles.value]
    reads = [level.read_bytes_per_cycle.value for level in machine.levels] + [machine.memory.read_bytes_per_cycle.value]
    assert sizes == sorted(sizes) and latencies == sorted(latencies) and reads == sorted(reads, reverse=True)


@pytest.mark.parametrize("name", CPUS)
def test_the_slicing_analysis_sees_the_caches_of_the_levels(name: str) -> None:
    machine = load(name)
    assert machine.csa is not None
    assert [machine.csa.l1_bytes, machine.csa.l2_bytes, machine.csa.l3_bytes] == [x.size_bytes for x in machine.levels]


@pytest.mark.parametrize("name", CPUS)
def test_a_cores_numbers_are_such_as_cores_have(name: str) -> None:
    """Wide of every server and client core of the last ten years, narrow enough for a slipped digit, unit or column."""
    machine = load(name)
    clock, levels = machine.core.frequency_hz.value, machine.levels
    assert 1.5e9 <= clock <= 6e9 and 1 <= machine.cores <= 512
    for unit in machine.core.units:
        probed = unit.target, probed_dtype(unit.target)
        lanes = {kernel.lane_windows * kernel.lane_filters for kernel in kernels() if (kernel.target, kernel.dtype) == probed}
        most = 256 / 3 if unit.target == "amx" else 64  # six tile products of 16 cycles for 32 of k
        assert 1 <= max(lanes) * unit.fma_per_cycle.value <= most, unit.target
        assert 2 <= unit.fma_latency_cycles.value <= 8 and 1 <= unit.loads_per_cycle.value <= 4, unit.target
        assert 0.5 <= unit.stores_per_cycle.value <= unit.loads_per_cycle.value, unit.target
    first, *others, last = (level.latency_cycles.value for level in levels)
    assert 2 <= first <= 6 and all(8 <= one <= 35 for one in others) and 5e-9 <= last / clock <= 80e-9
    assert 60e-9 <= machine.memory.latency_cycles.value / clock <= 250e-9
    widest = max(unit.vector_bytes * unit.loads_per_cycle.value for unit in machine.core.units)
    for place in (*levels, machine.memory):
        assert 1 <= place.read_bytes_per_cycle.value <= widest and 1 <= place.write_bytes_per_cycle.value <= widest
    assert 5e9 <= machine.memory.read_bytes_per_cycle.value * clock <= 150e9  # of one core


def test_the_paper_machines_carry_the_papers_numbers() -> None:
    power10, xeon = load("power10-e1050"), load("xeon-4208")
    assert power10.csa is not None and xeon.csa is not None
    for machine in (power10, xeon):
        assert [level.size_bytes for level in machine.levels] == [32 << 10, 1 << 20, 4 << 20]
    assert (power10.csa.windows, power10.csa.filters, power10.csa.line_bytes, power10.csa.alpha) == (16, 8, 128, 0.9)
    assert (xeon.csa.windows, xeon.csa.filters, xeon.csa.line_bytes, xeon.csa.alpha) == (4, 16, 64, 0.9)
    for csa, latencies in ((power10.csa, (10, 30, 300)), (xeon.csa, (14, 50, 200))):
        numbers = (csa.l2_latency_cycles, csa.l3_latency_cycles, csa.memory_latency_cycles)
        assert tuple(number.value for number in numbers) == latencies


@pytest.mark.parametrize(("name", "target", "lanes", "roof"), [("power10-e1050", "mma", 16, 256e9), ("xeon-4208", "avx512", 16, 67.2e9)])
def test_the_roofs_of_the_papers_table_1_follow_from_the_unit(name: str, target: str, lanes: int, roof: float) -> None:
    machine = load(name)
    unit = machine.unit(target)
    assert unit is not None
    reached = 2 * lanes * unit.fma_per_cycle.value * machine.core.frequency_hz.value / roof
    assert 0.95 < reached < 1 if unit.fma_per_cycle.kind == "static" else reached == pytest.approx(1)  # a loop has more than its sums


@pytest.mark.parametrize(
    ("name", "pipe", "teraflops"),
    [
        ("v100", "tensor_f16", 125),
        ("v100", "f64", 7.8),
        ("rtx-2080ti", "f32", 13.4),
        ("rtx-3090", "f32", 35.6),
        ("h200", "f32", 67),
        ("h100", "f32", 67),
        ("a100", "f32", 19.5),
        ("a100", "tensor_f64", 19.5),
        ("a100", "tensor_f16", 312),
        ("l40s", "f32", 91.6),
        ("l40s", "tensor_tf32", 183),
        ("rtx-4090", "f32", 82.6),
        ("rtx-4090", "tensor_f16_f32", 165.2),
    ],
)
def test_a_gpus_peak_is_its_datasheets(name: str, pipe: str, teraflops: float) -> None:
    gpu = load_any(name)
    assert isinstance(gpu, Gpu)
    peak = 2 * gpu.sms.value * gpu.fma_per_cycle[pipe].value * gpu.frequency_hz.value
    assert peak == pytest.approx(teraflops * 1e12, rel=0.01)


def test_every_target_of_the_kernel_registry_is_described_by_a_shipped_machine() -> None:
    described = {unit.target for name in CPUS for unit in load(name).core.units}
    assert {kernel.target for kernel in kernels()} <= described


def test_machines_are_hashable_so_that_plans_can_be_cached() -> None:
    assert hash(load("zen4")) == hash(loads(VALID)) != hash(load("xeon-4208"))


# Look-ups


def test_a_level_is_found_by_name_and_a_wrong_name_is_answered_with_the_levels() -> None:
    zen4 = load("zen4")
    assert zen4.level("L2").size_bytes == 1 << 20
    with pytest.raises(MachineError, match=r'zen4 has no level "l2"; .*L1, L2, L3'):
        zen4.level("l2")


def test_a_unit_that_the_core_lacks_is_none() -> None:
    assert load("zen4").unit("mma") is None


def test_assumed_lists_paths_of_assumed_numbers_and_of_nothing_else() -> None:
    xeon = load("xeon-4208")
    assert {"core.call_cycles", "core.pack_line_cycles", "levels.L3", "levels.L3.latency_cycles"} <= set(xeon.assumed())
    assert {"core.frequency_hz", "levels.L1.latency_cycles", "levels.L2", "memory"}.isdisjoint(xeon.assumed())
    for name in CPUS:
        machine = load(name)
        kinds = {path: fact.kind for path, fact in facts(machine)}
        assert machine.assumed() == [path for path, kind in kinds.items() if kind == "assumed"]
    h200 = load_any("h200")
    assert "sustained_hz.tensor_f8" in h200.assumed()
    assert {"sms", "memory_bytes_per_second", "fma_per_cycle.f32", "sustained_hz.tensor_f16"}.isdisjoint(h200.assumed())


def test_an_unknown_machine_is_answered_with_the_nearest_name_and_all_of_them() -> None:
    with pytest.raises(MachineError, match=r'no machine is named "zen-4"; did you mean "zen4"\? .*xeon-4208.*\.toml'):
        load("zen-4")


def test_a_gpu_is_refused_where_a_cpu_is_needed() -> None:
    with pytest.raises(MachineError, match=r'"h200" is a GPU; .*zen4'):
        load("h200")


def test_host_is_what_the_given_detection_finds() -> None:
    zen4 = load("zen4")
    assert load("host", lambda: zen4) is zen4
    with pytest.raises(MachineError, match=r"pysim\.calibration\.host\.detect"):
        load("host")


# A user's own file


def test_a_file_of_the_user_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(changed('name = "zen4"', 'name = "mine"'))
    assert load(path).name == load(str(path)).name == "mine"


def test_a_file_must_be_named_after_its_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(VALID)
    with pytest.raises(MachineError, match=r'mine\.toml: name: "zen4" .*"mine"'):
        load(path)


def test_what_is_no_readable_toml_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "huge.toml").write_bytes(b"#" * (1 << 20) + b"#")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "mine.json").write_text("{}")
    for name, why in [
        ("absent.toml", "no machine file"),
        ("folder.toml", "is a folder, and a machine is one .toml file"),
        ("binary.toml", "UTF-8"),
        ("huge.toml", "larger than"),
        ("mine.json", r"end in \.toml"),
        ("nul\0.toml", "no machine file"),
    ]:
        with pytest.raises(MachineError, match=why):
            load(tmp_path / name)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "zen4.toml"
    path.write_text((SHIPPED / "zen4.toml").read_text(), encoding="utf-8-sig")
    assert load(path) == load("zen4")


def test_a_field_of_the_other_kind_of_machine_is_not_offered_again():
    text = (SHIPPED / "zen4.toml").read_text().replace('kind = "cpu"', 'kind = "gpu"', 1)
    with pytest.raises(MachineError, match="unknown field") as caught:
        loads(text)
    field = str(caught.value).partition("`")[2].partition("`")[0]
    assert f'did you mean "{field}"' not in str(caught.value)


# What a file must not say

TOGETHER = """[[core.together]]
cpus = {}
slowest_share = {{ value = 0.9, kind = "assumed", source = "amd_ccx" }}
mean_share = {{ value = 0.9, kind = "assumed", source = "amd_ccx" }}
"""
FREQUENCY = 'frequency_hz = { value = 3.661e9, kind = "measured", source = "bandwidths", error = 9e6 }'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("cores = 8", "cores = 8\ncoers = 8", ["unknown field `coers`", 'did you mean "cores"']),
        ("sets = 64", "sets = 0", ["levels[0].sets", ">= 1"]),
        ("sets = 64", "sets = -64", ["levels[0].sets", ">= 1"]),
        ("sets = 64", "sets = 64.5", ["levels[0].sets", "int"]),
        ("sets = 64", "sets = 99999999999999999999999999", ["levels[0].sets"]),
        ("sets = 64\n", "", ["levels[0]", "missing required field `sets`"]),
        ('target = "avx2"', 'target = "avx512"', ["core.units", '"avx512" stands twice']),
        ('target = "avx2"', 'target = "avx521"', ["core.units", 'no kernel has the target "avx521"', 'did you mean "avx512"']),
        (
            "stores_per_cycle = {",
            'types = [{ name = "f46", fma_per_cycle = { value = 1.0, kind = "measured", source = "chains" } }]\nstores_per_cycle = {',
            ["core.units.avx512.types", 'no element type is named "f46"', "there are: f32, f64"],
        ),
        (
            "sets = 64\nways = 8",
            "sets = 4096\nways = 8",
            ["levels.L1", "2,097,152 bytes", "more than the 1,048,576 of L2", "none larger than the next"],
        ),
        ('name = "L2"', 'name = "L1"', ["levels", '"L1" stands twice']),
        ("sets = 64", "starts_cold = true\nsets = 64", ["levels.L1", "starts_cold", "leave it out of the file"]),
        ("line_bytes = 64", "line_bytes = 48", ["levels.L1", "line_bytes is 48", "power of two"]),
        ("sets = 64\nways = 8\nline_bytes = 64", "sets = 32\nways = 8\nline_bytes = 128", ["levels.L1", "no more than the 64 of L2"]),
        ("sets = 64", "cores = 2\nsets = 64", ["levels.L1", "cores is 2, shared is false", "shared = true"]),
        ("sets = 64", "shared = true\ncores = 9\nsets = 64", ["levels.L1", "cores is 9", "at most the machine's 8"]),
        ("[[core.units]]", f"{TOGETHER.format(4)}{TOGETHER.format(2)}[[core.units]]", ["core.together", "cpus is 2 behind 4"]),
        (
            "[[levels]]",
            f"{(TOGETHER.format(4) + TOGETHER.format(2)).replace('core.together', 'core.units.together')}[[levels]]",
            ["core.units.portable.together", "cpus is 2 behind 4"],
        ),
        (FREQUENCY, "frequency_hz = 3.661e9", ["core.frequency_hz", "{ value = 1.5, kind"]),
        (
            FREQUENCY,
            'frequency_hz = { value = 3.7e9, kind = "measured" }',
            ["core.frequency_hz", "`source`", "{ value"],
        ),
        (FREQUENCY, 'frequency_hz = { value = 3.7e9, source = "chains" }', ["core.frequency_hz", "`kind`", "{ value"]),
        ("value = 3.661e9", "value = nan", ["core.frequency_hz", "nan", "lie in 1e+06 to 1e+11"]),
        ("value = 3.661e9", "value = inf", ["core.frequency_hz", "inf", "lie in 1e+06 to 1e+11"]),
        ("value = 3.661e9", "value = -3.661e9", ["core.frequency_hz", "lie in"]),
        ("value = 3.661e9", "value = 0", ["core.frequency_hz", "lie in"]),
        ("value = 3.661e9", "value = 5e-324", ["core.frequency_hz", "lie in"]),
        ("value = 3.661e9", "value = true", ["core.frequency_hz.value", "float"]),
        ("value = 3.661e9", "value = 1" + "0" * 400, ["core.frequency_hz.value", "out of range"]),
        ("error = 9e6", "error = -1.0", ["core.frequency_hz", "error", "at least 0"]),
        ("value = 0.8", "value = 1.01", ["core.overlap", "lie in 0.001 to 1, or be 0"]),
        ("alpha = 0.9", "alpha = 0.0", ["csa.alpha"]),
        ("alpha = 0.9", "alpha = 1.1", ["csa.alpha"]),
        (
            'kind = "measured", source = "bandwidths", error = 9e6',
            'kind = "guessed", source = "bandwidths"',
            ["core.frequency_hz.kind", "guessed", "there are: datasheet, manual, measured, fitted, static, assumed"],
        ),
        (
            'source = "bandwidths", error',
            'source = "bandwidth", error',
            ["core.frequency_hz", 'did you mean "bandwidths"'],
        ),
        ('source = "amd_ccx"', 'source = "intel"', ["source", '"intel" is not in [sources]']),
        ('kind = "cpu"', 'kind = "tpu"', ["tpu", 'kind = "cpu" or kind = "gpu"']),
        ('kind = "cpu"\n', "", ["`kind`", 'kind = "cpu" or kind = "gpu"']),
        ("schema = 1", "schema = 2", ["schema", "reads schema = 1"]),
        ('name = "zen4"', 'name = ""', ["name", ">= 1"]),
        ("[csa]", "[csa", ["not TOML", "line"]),
        ("schema = 1", "schema = 1\nx = " + "[" * 5000, ["not TOML"]),
        ("schema = 1", "schema = " + "1" * 5000, ["not TOML"]),
        ("ways = 8", 'policy = "mru"\nways = 8', ["levels[0].policy", "mru"]),
    ],
)
def test_a_file_that_does_not_hold_is_refused_with_the_place_and_what_would_be_right(old: str, new: str, says: list[str]) -> None:
    message = refusal(changed(old, new))
    assert message.startswith("my.toml: ")
    for words in says:
        assert words in message


def test_a_source_must_say_more_than_a_title() -> None:
    text = changed("\n[sources.isa]", '\n[sources.isa2]\ntitle = "Somewhere"\n\n[sources.isa]')
    assert "sources.isa2: a title alone is not a source" in refusal(text)


def test_a_gpu_is_checked_like_a_cpu() -> None:
    assert "sms.value" in refusal(changed("sms = { value = 132", "sms = { value = 0", VALID_GPU))
    assert "fma_per_cycle.f64" in refusal(changed("f64 = { value = 64", "f64 = { value = nan", VALID_GPU))
    assert 'capability: Expected `str`; it is written "9.0"' in refusal(changed('capability = "9.0"', 'capability = "sm_90"', VALID_GPU))


def test_what_a_gpus_file_leaves_out_of_its_model_is_that_of_the_one_it_is_like() -> None:
    h200, text = load_any("h200"), (SHIPPED / "rtx-3090.toml").read_text()
    found = loads(text)
    assert isinstance(h200, Gpu) and isinstance(found, Gpu)
    assert set(found.model.families) == set(h200.model.families)
    taken, own = found.model.families["conv_direct"].launch_seconds, found.model.families["mma"].efficiency
    assert (taken.value, taken.kind) == (h200.model.families["conv_direct"].launch_seconds.value, "assumed")
    assert (own.value, own.source) == (0.85, "mma") and "those of h200" in (found.sources[taken.source].note or "")
    for wrong in ("h20O", "zen4", "rtx-3090x"):
        with pytest.raises(MachineError, match=f'like: no shipped GPU is named "{wrong}"'):
            loads(text.replace('like = "h200"', f'like = "{wrong}"'))
    with pytest.raises(MachineError, match="like"):
        loads((SHIPPED / "zen4.toml").read_text().replace('kind = "cpu"', 'kind = "cpu"\nlike = "zen5"'))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "tensor_f16 = { value = 2048",
            "tensor_fp16 = { value = 2048",
            'fma_per_cycle: no kernel multiplies on a pipe named "tensor_fp16"; did',
        ),
        (
            "tensor_f16 = { value = 1.496",
            "tensor_fp16 = { value = 1.496",
            'sustained_hz: no pipe of fma_per_cycle is named "tensor_fp16"',
        ),
        ("[model.families.simt]", "[model.families.smit]", 'model.families: no kernel is of a family named "smit"; did you mean "simt"'),
        ("[clusters_at_once]\n", '[clusters_at_once]\nfour = { value = 3, kind = "assumed", source = "device" }\n', "such as 4, not"),
        (
            'shared_rule = "hopper"',
            'shared_rule = "hoper"',
            "shared_rule: Invalid enum value 'hoper'; there are: volta,",
        ),
        (
            "shared_bytes_per_block = { value = 232448",
            "shared_bytes_per_block = { value = 233473",
            "more than shared_bytes_per_sm, 233,472",
        ),
        ("l1_bytes = { value = 262144", "l1_bytes = { value = 26214", "shared_bytes_per_sm: value is 233,472, more than l1_bytes, 26,214"),
    ],
)
def test_a_gpu_file_with_a_name_that_nothing_looks_up_or_parts_beyond_the_whole_is_refused(old: str, new: str, says: str) -> None:
    assert says in refusal(changed(old, new, VALID_GPU))


def test_the_rules_of_shared_memory_that_machines_name_are_those_there_are() -> None:
    assert set(get_args(SharedRule)) == set(rules().rules)


def test_no_more_clusters_run_at_once_than_there_are_sms_for() -> None:
    h200 = load_any("h200")
    assert isinstance(h200, Gpu)
    assert h200.clusters(3) == 39
    assert msgspec.structs.replace(h200, sms=msgspec.structs.replace(h200.sms, value=114)).clusters(3) == 38


def test_sets_need_not_be_a_power_of_two() -> None:
    machine = loads(changed("sets = 2048", "sets = 1536"))
    assert isinstance(machine, Machine)
    assert machine.level("L2").size_bytes == 1536 * 8 * 64


def test_costs_may_be_nothing_but_rates_may_not() -> None:
    every = (SHIPPED / "zen3.toml").read_text()  # has each of them
    for name in ("overlap", *(name for name in Core.__struct_fields__ if name.endswith("_cycles"))):
        machine = loads(with_value(name, 0, every))
        assert isinstance(machine, Machine) and getattr(machine.core, name).value == 0
        assert "or be 0" in refusal(with_value(name, -1, every))
    for name in ("frequency_hz", "fma_per_cycle", "read_bytes_per_cycle"):
        message = refusal(with_value(name, 0))
        assert "it should lie in" in message and "or be 0" not in message
    assert "to 1, or be 0" in refusal(with_value("overlap", 1.01))


def test_a_unit_has_one_rate_and_others_for_types_that_need_more() -> None:
    unit = load("power10-e1050").unit("mma")
    assert unit is not None
    assert unit.rate("f32") == unit.fma_per_cycle.value and unit.rate("f16") == unit.fma_per_cycle.value
    own = {one.name: one.fma_per_cycle.value for one in unit.types}
    assert own and all(unit.rate(name) == value for name, value in own.items())
    text = (SHIPPED / "power10-e1050.toml").read_text()
    assert "bf16" in refusal(changed('name = "s8"', 'name = "bf16"', text))


def test_at_another_clock_caches_keep_pace_and_memory_keeps_its_own_time() -> None:
    zen4 = load("zen4")
    faster = zen4.at_clock(1.25 * zen4.clock_hz)
    assert faster.clock_hz == 1.25 * zen4.clock_hz and faster.levels == zen4.levels and faster.core.units == zen4.core.units
    for name, factor in (("latency_cycles", 1.25), ("read_bytes_per_cycle", 0.8), ("write_bytes_per_cycle", 0.8)):
        assert getattr(faster.memory, name).value == pytest.approx(factor * getattr(zen4.memory, name).value)


@pytest.mark.parametrize(
    ("name", "target", "rate"),
    [("zen4", "avx512", 2), ("zen4", "avx2", 2), ("sapphire-rapids", "avx512", 2), ("sapphire-rapids", "avx2", 3)],
)
def test_elements_come_into_wide_vectors_as_fast_as_ports_have_them(name, target, rate):
    machine = load(name)
    assert machine.broadcasts_per_cycle(machine.unit_of(target)) == rate
