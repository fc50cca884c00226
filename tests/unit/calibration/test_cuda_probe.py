# SPDX-License-Identifier: Apache-2.0
"""What is asked of a GPU's probes and what is made of the answers; that the probes' machine code is what it should be, and, where there
is a GPU, what comes out.

Most of this runs without a GPU: `Recorded` answers in its place, and the library refuses bad calls before it looks for a device.
"""

import json
import re
import shutil
import subprocess
from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from checkout import ROOT
from command_line import document, invoke, ok, refused
from fake_gpu import cuda_ffi

from pysim.cachemodel.shared_memory.banks import WIDTHS, SharedMemory
from pysim.calibration import cuda_probe, gpu_calibrate, host
from pysim.calibration.cuda_probe import ALL_LANES, MAX_WARPS, SAMPLES, Calibration, SharedProbe, calibrate, merged, patterns
from pysim.calibration.estimate import Estimate
from pysim.calibration.gpu_calibrate import GpuFit, Quality
from pysim.errors import MachineError, MissingError, NativeError
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any, loads
from pysim.machine.quantity import Number, facts
from pysim.machine.write import to_toml
from pysim.registry.native_files import native_file
from pysim.runtime import cuda

ORACLE = json.loads((ROOT / "tests" / "data" / "shared_memory_h200.json").read_text())["patterns"]
HOPPER = SharedMemory(rule="hopper")
DEVICE = cuda.Device(0, "NVIDIA H200", 90, 132, 150 << 30, 62914560, 233472, 232448, 65536, 2048, 32, 1980000, 3201000, 13000, 13000)

PROBE = native_file("cuda/probe/probe.cu")
INCLUDE = (f"-I{native_file('cuda')}", f"-I{native_file('cuda').parent}")
UNROLLED = 256  # of native/cuda/probe/probe.cu: instructions between two branches

# Wavefronts of loads and of stores by width, worked out by hand from the rule (docs of pysim/cachemodel/shared_memory/banks.py)
BY_HAND = {
    "consecutive": {4: (1, 1), 8: (2, 2), 16: (4, 4)},
    "lanes 0-15": {4: (1, 1), 8: (1, 1), 16: (2, 2)},
    "even lanes": {
        4: (1, 1),
        8: (2, 2),
        16: (4, 4),
    },  # loads of 8, 16: groups double, but two lanes share a bank
    "lanes 0-7, 16-23": {4: (1, 1), 8: (2, 2), 16: (2, 2)},
    "broadcast": {4: (1, 1), 8: (1, 2), 16: (2, 4)},
    "T, T^1 alike": {4: (1, 1), 8: (1, 2), 16: (2, 4)},
    "T, T^2 alike": {4: (1, 1), 8: (1, 2), 16: (2, 4)},
    "2-way conflict": {4: (2, 2), 8: (4, 4), 16: (8, 8)},
    "4-way conflict": {4: (4, 4), 8: (8, 8), 16: (16, 16)},
    "8-way conflict": {4: (8, 8), 8: (16, 16), 16: (32, 32)},
    "16-way conflict": {4: (16, 16), 8: (32, 32)},
    "32-way conflict": {4: (32, 32)},
}


class Recorded:
    """A device that obeys the model but for one instruction, a slow scheduler and some noise; it notes what it was asked."""

    def __init__(self, slow: float = 1.0, bad: float | None = None) -> None:
        self.slow, self.bad = slow, bad
        self.asked: list[SharedProbe] = []
        self.read_of: list[tuple[int, int]] = []

    def shared(self, probe: SharedProbe) -> np.ndarray:
        self.asked.append(probe)
        lanes = probe.active >> np.arange(32) & 1
        wavefronts = HOPPER.wavefronts(probe.offsets, probe.width_bytes, probe.is_store, lanes).total
        cycles = max(wavefronts, 4 / probe.warps) + (29 if probe.dependent else 0)
        if probe.width_bytes == 8 and probe.is_store and wavefronts == 32:
            cycles *= self.slow
        return self.bad if self.bad is not None else cycles * np.array([1, 1, 1.02, 1, 0.999, 1, 1.5])[:SAMPLES]

    def fma(self, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        per_cycle = {"f32": 127.0, "f64": 63.5, "f16": 254.0, "s8": 255.0}[dtype]
        return np.full(SAMPLES, per_cycle), np.linspace(0.99, 1.01, SAMPLES) * per_cycle * DEVICE.sms * 1.9e9

    def read(self, nbytes: int, passes: int) -> np.ndarray:
        self.read_of.append((nbytes, passes))
        return np.full(SAMPLES, 7.5e12 if nbytes < DEVICE.l2_bytes else 4.5e12)


def h200() -> Gpu:
    gpu = load_any("h200")
    assert isinstance(gpu, Gpu)
    return gpu


def unknown() -> Gpu:
    """The machine of a GPU that no file describes: all that CUDA does not say is assumed."""
    return host._gpu_of(msgspec.structs.replace(DEVICE, name="NVIDIA Something", sms=100), h200())


def row(found: Calibration, instruction: str, pattern: str) -> cuda_probe.SharedRow:
    (one,) = [one for one in found.shared if (one.instruction, one.pattern) == (instruction, pattern)]
    return one


# What is asked


@pytest.mark.parametrize("width", WIDTHS)
def test_patterns_cost_the_wavefronts_that_the_rule_gives_by_hand(width: int) -> None:
    found = {
        one.name: tuple(HOPPER.wavefronts(one.offsets, width, store, one.lanes).total for store in (False, True)) for one in patterns(width)
    }
    assert found == {name: by_width[width] for name, by_width in BY_HAND.items() if width in by_width}


def test_patterns_that_were_counted_on_an_h200_cost_what_the_counters_said() -> None:
    counted = {(one["width"], tuple(one["addr"])): (one["ld_wavefronts"], one["st_wavefronts"]) for one in ORACLE}
    met = 0
    for width in WIDTHS:
        for one in patterns(width):
            key = (width, tuple(np.where(one.lanes, one.offsets, -1).tolist()))
            if key in counted:
                met += 1
                assert BY_HAND[one.name][width] == counted[key], (one.name, width)
    assert met >= 20


@pytest.mark.parametrize("width", WIDTHS)
def test_patterns_stay_within_a_warps_own_bytes_and_are_aligned(width: int) -> None:
    for one in patterns(width):
        assert len(one.offsets) == 32 and 0 < one.active <= ALL_LANES
        assert all(0 <= offset <= 4096 - width and offset % width == 0 for offset in one.offsets), one.name


def test_every_instruction_is_probed_in_every_pattern_with_one_warp_and_with_many_and_loads_as_a_chain() -> None:
    probes = Recorded()
    calibrate(h200(), DEVICE, probes)
    of = Counter((one.width_bytes, one.is_store, one.warps, one.dependent) for one in probes.asked)
    expected = {(w, s, n, False): len(patterns(w)) for w in WIDTHS for s in (False, True) for n in cuda_probe.WARPS}
    assert of == expected | {(w, False, 1, True): len(patterns(w)) for w in WIDTHS}


def test_l2_is_read_from_within_and_memory_from_far_beyond() -> None:
    probes = Recorded()
    calibrate(h200(), DEVICE, probes)
    (near, passes), (far, _) = probes.read_of
    assert near <= DEVICE.l2_bytes // 2 and near * passes > 1 << 33
    assert 8 * DEVICE.l2_bytes <= far <= DEVICE.memory_bytes // 2
    assert near % 16 == far % 16 == 0


# What is made of the answers


def test_cycles_are_medians_and_bytes_are_what_the_lanes_move() -> None:
    found = calibrate(h200(), DEVICE, Recorded())
    one = row(found, "LDS.128", "consecutive")
    assert (one.wavefronts, one.predicted_cycles, one.active_lanes) == (4, 4.0, 32)
    assert one.cycles[MAX_WARPS].median == 4.0 and one.cycles[MAX_WARPS].low == 3.996 and one.cycles[MAX_WARPS].high == 6.0
    assert one.bytes_per_cycle == 128.0 and one.ratio == 1.0 and not one.differs
    assert one.latency_cycles is not None and one.latency_cycles.median == 33.0
    assert row(found, "STS.128", "consecutive").latency_cycles is None
    assert row(found, "LDS.128", "lanes 0-15").bytes_per_cycle == 16 * 16 / 2
    assert row(found, "LDS.32", "consecutive").cycles[1].median == 4.0, "one warp waits for its scheduler"
    assert (found.load_cycles, found.store_cycles, found.unsaturated) == (1.0, 1.0, 0)


def test_exactly_the_instruction_that_departs_from_its_prediction_is_marked() -> None:
    found = calibrate(h200(), DEVICE, Recorded(slow=1.11))
    assert [(one.instruction, one.pattern) for one in found.shared if one.differs] == [("STS.64", "16-way conflict")]
    assert not any(one.differs for one in calibrate(h200(), DEVICE, Recorded(slow=1.09)).shared)


def test_rows_in_which_more_warps_do_more_are_counted() -> None:
    class Slow(Recorded):
        def shared(self, probe: SharedProbe) -> np.ndarray:
            return super().shared(probe) * (1.05 if probe.warps < MAX_WARPS and probe.width_bytes == 4 else 1)

    assert calibrate(h200(), DEVICE, Slow()).unsaturated == 2 * len(patterns(4))


@pytest.mark.parametrize("bad", [np.array([]), np.array([1.0, 0.0]), np.array([1.0, np.nan]), np.array([-1.0]), np.array([np.inf])])
def test_a_probe_that_measures_nonsense_is_refused_by_name(bad: np.ndarray) -> None:
    with pytest.raises(MachineError, match=r"LDS\.32 consecutive.*finite and greater than 0"):
        calibrate(h200(), DEVICE, Recorded(bad=bad))


def test_what_a_vendor_states_or_a_fit_found_stays_and_what_was_measured_is_replaced() -> None:
    gpu = h200()
    found = calibrate(gpu, DEVICE, Recorded())
    assert [rate.path for rate in found.rates if rate.kept is None] == ["sustained_hz.f32"]
    new = merged(gpu, found)
    assert new.sustained_hz["f32"].value == pytest.approx(127 / 128 * 1.9e9, rel=1e-3)
    assert new.sustained_hz["f32"].error == pytest.approx(0.01 * 127 / 128 * 1.9e9, rel=0.05)
    changed = {path for path, fact in facts(new) if fact != dict(facts(gpu))[path]}
    assert changed == {"sustained_hz.f32"}


def test_all_that_was_assumed_and_could_be_measured_is_replaced_and_agrees_with_itself() -> None:
    gpu = unknown()
    device = msgspec.structs.replace(DEVICE, sms=100)
    new = merged(gpu, calibrate(gpu, device, Recorded()), "mine")
    replaced = {path for path, fact in facts(new) if fact.source == cuda_probe.SOURCE}
    rates = {"sustained_hz.f32", "l2_bytes_per_second", "memory_bytes_per_second"}
    assert replaced == rates | {f"fma_per_cycle.{dtype}" for dtype in ("f32", "f64", "f16", "s8")}
    assert (new.l2_bytes_per_second.value, new.memory_bytes_per_second.value) == (7.5e12, 4.5e12)
    whole = new.fma_per_cycle["f32"].value * new.sustained_hz["f32"].value * device.sms
    assert whole == pytest.approx(127 * DEVICE.sms * 1.9e9, rel=1e-3), "multiply-adds a second as measured"


@pytest.mark.parametrize("make", [h200, unknown])
def test_a_merged_machine_file_reads_back_as_it_was_and_names_its_measurement(make) -> None:
    gpu = make()
    new = merged(gpu, calibrate(gpu, DEVICE, Recorded()), "mine")
    assert loads(to_toml(new)) == new and new.name == "mine"
    assert set(new.sources) == {fact.source for _, fact in facts(new)}
    source = new.sources[cuda_probe.SOURCE]
    assert source.command == f"pysim machines calibrate -m {gpu.name}" and "NVIDIA H200" in str(source.versions)
    number = new.sustained_hz["f32"]
    assert isinstance(number, Number) and (number.kind, number.source) == ("measured", cuda_probe.SOURCE)


def test_a_calibration_is_one_json_document_that_reads_back() -> None:
    found = calibrate(h200(), DEVICE, Recorded())
    assert msgspec.json.decode(msgspec.json.encode(found), type=Calibration) == found


# The command


@pytest.fixture
def recorded_device(monkeypatch):
    """A computer with an H200 whose probes answer as `Recorded`."""
    monkeypatch.setattr(cuda, "devices", lambda: (DEVICE,))
    monkeypatch.setattr(cuda_probe, "DeviceProbes", lambda: Recorded(slow=1.3))
    better, best = Quality(0.1, 0.3, 1.02, 1.1), Quality(0.05, 0.2, 1.01, 1.1)
    launch = {"model.families.simt.launch_seconds": Estimate(3e-6, 1e-7)}

    def fitted(gpu: Gpu, *_: object) -> GpuFit:
        assert gpu.sustained_hz["f32"].source == cuda_probe.SOURCE, "products are fitted on what the probes found"
        return GpuFit(launch, better, best, best, 90, 360, 60.0)

    monkeypatch.setattr(gpu_calibrate, "calibrate", fitted)


@pytest.mark.usefixtures("recorded_device")
def test_the_command_shows_each_instruction_beside_its_prediction_and_marks_what_differs() -> None:
    out = ok("machines", "calibrate", "-m", "h200")
    lines = {tuple(re.split(r"\s{2,}", line)[:2]): line for line in out.splitlines()}
    assert len([key for key in lines if key[0][:3] in ("LDS", "STS")]) == sum(2 * len(patterns(width)) for width in WIDTHS)
    assert lines["STS.64", "16-way conflict"].split()[-2:] == ["!", "-"] and "1.30" in lines["STS.64", "16-way conflict"]
    assert lines["LDS.128", "consecutive"].split()[2:] == ["32", "4", "4.00", "4.00", "128.0", "1.00", "33.0"]
    assert "1 of 66 differ from the prediction by more than 10%" in out
    assert re.search(r"families\.simt\.launch_seconds .* fitted", out)
    assert re.search(r"held out of the fit +5\.0% +20\.0% +1\.010 +1\.100", out)
    assert re.search(r"memory_bytes_per_second +4,800,000,000,000 +fitted +4,500,000,000,000 +kept: fitted", out)


@pytest.mark.usefixtures("recorded_device")
def test_the_command_writes_a_machine_file_that_plans_can_use(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    found = document("machines", "calibrate", "-m", "h200", "-o", str(path))["calibrations"][0]
    assert (found["machine"], found["device"]["name"], len(found["shared"])) == ("h200", "NVIDIA H200", 66)
    assert found["products"]["left_out"]["median_error"] == 0.05
    new = load_any(path)
    assert new.sustained_hz["f32"].source == cuda_probe.SOURCE
    assert new.model.families["simt"].launch_seconds.source == gpu_calibrate.SOURCE
    assert document("plan", "gemm:512x512x512", "-m", str(path))["plans"][0]["machine"] == "mine"
    assert "is there already and is kept" in refused(2, "machines", "calibrate", "-m", "h200", "-o", str(path))


@pytest.mark.usefixtures("recorded_device")
def test_a_gpu_that_is_another_one_is_not_measured(tmp_path) -> None:
    assert "the GPU here is NVIDIA H200" in refused(3, "machines", "calibrate", "-m", "v100", "-o", str(tmp_path / "v100.toml"))
    assert not list(tmp_path.iterdir())


def test_without_a_gpu_the_command_says_what_is_missing_and_exits_with_3(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYSIM_CUDA_LIBRARY", str(tmp_path / "none.so"))
    cuda.library.cache_clear()
    cuda.devices.cache_clear()
    try:
        for name in ("h200", "cuda"):
            assert "no CUDA kernel is in this build" in refused(3, "machines", "calibrate", "-m", name)
    finally:
        cuda.library.cache_clear()
        cuda.devices.cache_clear()


def test_the_command_refuses_unknown_machines_and_files_that_are_no_machine_files(tmp_path) -> None:
    assert 'did you mean "h200"' in refused(2, "machines", "calibrate", "-m", "h20")
    assert ".toml" in refused(2, "machines", "calibrate", "-m", "h200", "-o", str(tmp_path / "h200.json"))
    assert "folder" in refused(2, "machines", "calibrate", "-m", "h200", "-o", str(tmp_path / "none" / "h200.toml"))
    assert invoke("machines", "calibrate", "--help").exit_code == 0


# The native probes


def test_the_library_gets_field_for_field_what_is_requested_and_its_numbers_come_back(monkeypatch) -> None:
    ffi = cuda_ffi()
    scratch, told = ffi.new("char[1024]"), []

    class Lib:
        PYSIM_CUDA_PROBE_BYTES, PYSIM_F16 = 1024, 2

        def pysim_cuda_allocate(self, nbytes, out):
            out[0] = scratch
            return 0

        def pysim_cuda_release(self, memory):
            return 0

        def pysim_cuda_probe_shared(self, probe, at, samples, cycles, stream):
            told.append((probe.width_bytes, probe.is_store, probe.dependent, probe.warps, probe.active, tuple(probe.offsets)))
            cycles[0:samples] = [float(i) for i in range(samples)]
            return 0 if at == scratch and stream == ffi.NULL else 1

        def pysim_cuda_probe_fma(self, dtype, at, samples, per_cycle, per_second, stream):
            per_cycle[0:samples], per_second[0:samples] = [dtype] * samples, [3e13] * samples
            return 0

        def pysim_cuda_probe_read(self, buffer, nbytes, passes, at, samples, rate, stream):
            rate[0:samples] = [nbytes * passes] * samples
            return 0

    lib = Lib()
    monkeypatch.setattr(cuda, "library", lambda: (ffi, lib))
    monkeypatch.setattr(cuda, "devices", lambda: (DEVICE,))
    probes = cuda_probe.DeviceProbes()
    asked = SharedProbe(8, True, False, 3, 0x80000001, tuple(range(0, 256, 8)))
    assert probes.shared(asked).tolist() == list(range(SAMPLES)) and told == [tuple(asked)]
    per_cycle, per_second = probes.fma("f16")
    assert (set(per_cycle), set(per_second), set(probes.read(1024, 5))) == ({2.0}, {3e13}, {5120.0})
    del Lib.pysim_cuda_probe_shared
    with pytest.raises(MissingError, match="older than its probes"):
        cuda_probe.DeviceProbes()


def library():
    try:
        ffi, lib = cuda.library()
    except MissingError as error:
        pytest.skip(str(error))
    return ffi, lib


VALID = {"width_bytes": 16, "is_store": 0, "dependent": 0, "warps": 1, "active": ALL_LANES, "offsets": [16 * lane for lane in range(32)]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width_bytes": 12}, "width_bytes is 12; it should be 4, 8 or 16"),
        ({"warps": 17}, "warps is 17; it should be 1 to 16"),
        ({"warps": 0}, "warps is 0"),
        ({"active": 0}, "one lane at least"),
        ({"is_store": 1, "dependent": 1}, "only loads are dependent"),
        ({"is_store": 2}, "each is 0 or 1"),
        ({"offsets": [8] + [0] * 31}, "lane 0 has the offset 8; it should be a multiple of 16 from 0 to 4080"),
        ({"offsets": [0] * 31 + [4096]}, "lane 31 has the offset 4096"),
        ({"offsets": [0] * 31 + [-16]}, "lane 31 has the offset -16"),
    ],
)
def test_a_probe_that_no_warp_could_run_is_refused_before_the_device_is_touched(change: dict, words: str) -> None:
    ffi, lib = library()
    cycles = ffi.new("double[1]", [7.0])
    scratch = ffi.cast("void *", 4096)  # never followed: the call is refused
    with pytest.raises(NativeError, match=re.escape(words)):
        cuda.check(lib.pysim_cuda_probe_shared(ffi.new("pysim_cuda_shared_probe *", VALID | change), scratch, 1, cycles, ffi.NULL))
    assert cycles[0] == 7.0


def test_probes_refuse_missing_memory_odd_sizes_and_types_without_a_probe() -> None:
    ffi, lib = library()
    probe, out, at = ffi.new("pysim_cuda_shared_probe *", VALID), ffi.new("double[1]"), ffi.cast("void *", 4096)
    calls = [
        (lambda: lib.pysim_cuda_probe_shared(ffi.NULL, at, 1, out, ffi.NULL), "probe is NULL"),
        (lambda: lib.pysim_cuda_probe_shared(probe, ffi.NULL, 1, out, ffi.NULL), "scratch is"),
        (lambda: lib.pysim_cuda_probe_shared(probe, ffi.cast("void *", 4100), 1, out, ffi.NULL), "aligned to 8"),
        (lambda: lib.pysim_cuda_probe_shared(probe, at, 0, out, ffi.NULL), "samples is 0"),
        (lambda: lib.pysim_cuda_probe_shared(probe, at, 1, ffi.NULL, ffi.NULL), "not NULL"),
        (lambda: lib.pysim_cuda_probe_fma(lib.PYSIM_BF16, at, 1, out, out, ffi.NULL), "f32, f64, f16 and s8 have"),
        (lambda: lib.pysim_cuda_probe_fma(lib.PYSIM_F32, at, 1, out, ffi.NULL, ffi.NULL), "not NULL"),
        (lambda: lib.pysim_cuda_probe_read(ffi.NULL, 1024, 1, at, 1, out, ffi.NULL), "buffer is"),
        (lambda: lib.pysim_cuda_probe_read(at, 1000, 1, at, 1, out, ffi.NULL), "multiple of 16"),
        (lambda: lib.pysim_cuda_probe_read(at, 1024, 0, at, 1, out, ffi.NULL), "passes is 0"),
    ]
    for call, words in calls:
        assert call() != lib.PYSIM_OK, words
        assert words in ffi.string(lib.pysim_cuda_last_error()).decode()


# Their machine code


@pytest.fixture(scope="module")
def timed(tmp_path_factory) -> dict[str, list[str]]:
    """By kernel, the instructions between its two readings of the clock."""
    for tool, package in (("nvcc", "nvidia-cuda-nvcc"), ("nvdisasm", "nvidia-cuda-nvdisasm")):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not here (pip install {package})")
    if not PROBE.exists():
        pytest.skip("needs the sources of a checkout")
    cubin = tmp_path_factory.mktemp("probe") / "probe.cubin"
    build = ["nvcc", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-cubin", "-o", str(cubin), *INCLUDE, str(PROBE)]
    subprocess.run(build, check=True, capture_output=True)
    listed = subprocess.run(["nvdisasm", "-c", str(cubin)], check=True, capture_output=True, text=True).stdout
    found = {}
    for text in listed.split("\t.section\t.text.")[1:]:
        between = text.split("SR_CLOCKLO")
        if len(between) == 3:
            found[text.partition(",")[0]] = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?(.*?)\s*;", between[1])
    return found


@pytest.mark.parametrize("words", [1, 2, 4])
@pytest.mark.parametrize(("number", "opcode"), [(0, "LDS"), (1, "STS"), (2, "LDS")], ids=["load", "store", "chain"])
def test_a_timed_loop_is_its_instructions_and_next_to_nothing_else(timed, words: int, number: int, opcode: str) -> None:
    (code,) = [code for name, code in timed.items() if f"shared_kernelILi{words}ELNS0_4KindE{number}E" in name]
    opcode += "" if words == 1 else f".{32 * words}"
    issued = [line.split(None, 1)[1] for line in code if line.split()[0] == opcode]
    assert len(issued) == UNROLLED
    assert sum(line.startswith(("LDS", "STS", "LDG", "STG", "LDL", "STL")) for line in code) == UNROLLED
    assert len(code) - UNROLLED <= UNROLLED // 16, "what is not the instruction"
    address = [re.search(r"\[(R\d+)\]", line).group(1) for line in issued]  # a register and nothing added to it
    if number == 1:
        assert len(set(address)) == 1
        return
    to = [line.partition(",")[0] for line in issued]
    assert "RZ" not in to, "a load that writes no register may not be a load"
    if number == 0:
        assert len(set(address)) == 1 and address[0] not in to
        assert all(a != b for a, b in pairwise(to[:-1])) or words == 4
    else:
        assert address[1:] == to[:-1], "each takes its address from the one before"


@pytest.mark.parametrize(("kind", "opcode"), [("f", "FFMA"), ("d", "DFMA"), ("7__half2", "HFMA2"), ("i", "IDP.4A.S8.S8")])
def test_the_multipliers_loop_is_multiply_adds_that_read_one_new_register_each(timed, kind: str, opcode: str) -> None:
    (code,) = [code for name, code in timed.items() if f"fma_kernelI{kind}E" in name]
    loop = [line for line in code if line.split()[0] == opcode]
    assert UNROLLED <= len(loop) <= UNROLLED + 3  # and the chains' sum
    assert len(code) - len(loop) <= UNROLLED // 16
    assert len({line.split()[1] for line in loop[:UNROLLED]}) == 4, "chains"


# On a GPU


def test_on_a_gpu_shared_memory_takes_what_its_wavefronts_say() -> None:
    try:
        gpu, probes = host.gpu_here(), cuda_probe.DeviceProbes()
    except MissingError as error:
        pytest.skip(str(error))
    found = calibrate(gpu, cuda.devices()[0], probes)
    if gpu.shared_rule != "hopper":
        pytest.skip(f"{gpu.description}: the rule is exact on Hopper")
    assert [one for one in found.shared if one.differs and one.pattern.endswith("conflict")] == []
    assert found.load_cycles == pytest.approx(1, rel=0.1) and found.store_cycles == pytest.approx(1, rel=0.1)
    assert found.unsaturated == 0
    assert all(10 < one.latency_cycles.median < 200 for one in found.shared if one.latency_cycles)
