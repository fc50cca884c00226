# SPDX-License-Identifier: Apache-2.0
"""What both compilers make of native/power10: the instructions of the inner loops, and the cycles that LLVM's model gives them."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from checkout import NATIVE

MCA = next(filter(None, map(shutil.which, ("llvm-mca", *(f"llvm-mca-{v}" for v in range(14, 30))))), None)
COMPILERS = {"gcc": ("powerpc64le-linux-gnu-gcc", "-mcpu=power10")}
if importlib.util.find_spec("ziglang"):
    COMPILERS["clang"] = (sys.executable, "-m", "ziglang", "cc", "-target", "powerpc64le-linux-gnu.2.32", "-mcpu=pwr10")

KERNELS = [
    ("f32.c", "f32_outer_16x8__mma"),
    ("f64.c", "f64_outer_8x8__mma"),
    ("bf16.c", "bf16_outer_16x8__mma"),
    ("s8.c", "s8_outer_16x8__mma"),
]
MULTIPLY = re.compile(r"(pm)?xv\w+ger\w*")
STORE = re.compile(r"st\w+")
VECTOR_LOAD = re.compile(r"lxv\w*|lvx")
ACCUMULATOR_MOVE = re.compile(r"xxm[ft]acc|xxsetaccz")

pytestmark = pytest.mark.skipif(not (NATIVE / "power10").exists(), reason="needs the sources of a checkout")


@pytest.fixture(params=COMPILERS)
def compiler(request):
    if not shutil.which(COMPILERS[request.param][0]):
        pytest.skip(f"{COMPILERS[request.param][0]} is not installed")
    return request.param


@cache
def assembly(compiler: str, file: str) -> dict[str, list[str]]:
    """The instructions and labels of each function, as meson.build compiles the file."""
    with tempfile.TemporaryDirectory() as folder:  # zig's Clang writes no assembly to a pipe
        flags = ("-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-S", "-o", f"{folder}/out.s")
        subprocess.run([*COMPILERS[compiler], *flags, f"-I{NATIVE}", NATIVE / "power10" / file], capture_output=True, check=True)
        text = Path(folder, "out.s").read_text()
    functions: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        code = line.partition("#")[0].strip()
        if match := re.fullmatch(r"(\w+):", code):
            lines = functions.setdefault(match[1], [])
        elif re.fullmatch(r"\.L\w+:", code) or (code and not code.startswith(".")):
            lines.append(" ".join(code.split()))
    return functions


def innermost_loops(lines: list[str]) -> list[list[str]]:
    """From a label to a branch back to it, where no other loop lies in between."""
    labels = {line[:-1]: i for i, line in enumerate(lines) if line.endswith(":")}
    spans = []
    for i, line in enumerate(lines):
        target = line.rpartition(" ")[2].rpartition(",")[2]
        if line.startswith("b") and labels.get(target, i) < i:
            spans.append((labels[target], i + 1))
    inner = [s for s in spans if not any(s[0] <= t[0] and t[1] <= s[1] and s != t for t in spans)]
    return [[line for line in lines[a:b] if not line.endswith(":")] for a, b in inner]


def count(loop: list[str], pattern: str | re.Pattern[str]) -> int:
    return sum(bool(re.fullmatch(pattern, line.split()[0])) for line in loop)


def multiply_loops(compiler: str, file: str, function: str) -> list[list[str]]:
    return [loop for loop in innermost_loops(assembly(compiler, file)[function]) if count(loop, MULTIPLY)]


def whole_tile_loops(compiler: str) -> list[list[str]]:
    """Of packed panels and of windows in place: rounds of several steps. (Single steps are the rest that fills no round.)"""
    loops = [loop for loop in multiply_loops(compiler, "f32.c", "f32_outer_16x8__mma") if count(loop, "lxvpx?") > 3]
    assert len(loops) == 2
    return sorted(loops, key=len)


def multiplies_a_cycle(loop: list[str]) -> float:
    rounds = 1000
    command = [MCA, "-mtriple=powerpc64le-linux-gnu", "-mcpu=pwr10", f"-iterations={rounds}"]
    code = "\n".join(["0:", *(re.sub(r"\.L\w+", "0b", line) for line in loop)])
    report = subprocess.run(command, input=code, capture_output=True, text=True, check=True).stdout
    return rounds * count(loop, MULTIPLY) / int(re.search(r"Total Cycles:\s+(\d+)", report)[1])


def test_a_step_is_eight_multiplies_into_eight_accumulators_and_three_pair_loads(compiler):
    for loop in whole_tile_loops(compiler):
        steps, rest = divmod(count(loop, "xvf32gerpp"), 8)
        assert rest == 0 and steps > 1
        assert count(loop, "lxvpx?") == 3 * steps
        accumulators = [re.split(r"[ ,]+", line)[1] for line in loop if line.startswith("xvf32gerpp")]
        assert {accumulators.count(a) for a in set(accumulators)} == {steps} and len(set(accumulators)) == 8


def test_the_inner_loop_does_nothing_else_but_count(compiler):
    packed, in_place = whole_tile_loops(compiler)
    for loop, others in ((packed, 3), (in_place, 10)):  # two pointers and the branch; and a pointer to each step's windows
        assert len(loop) - count(loop, "xvf32gerpp") - count(loop, "lxvpx?") <= others
        assert count(loop, "add|addi|mr|bdnz") == len(loop) - count(loop, "xvf32gerpp") - count(loop, "lxvpx?")


@pytest.mark.parametrize(("file", "function"), KERNELS)
def test_no_loop_of_any_edge_spills_or_moves_an_accumulator(compiler, file, function):
    loops = multiply_loops(compiler, file, function)
    assert len(loops) >= 20  # 12 shapes, a round and a rest each
    for loop in loops:
        assert count(loop, STORE) == 0 and count(loop, ACCUMULATOR_MOVE) == 0, "\n".join(loop)


@pytest.mark.parametrize(("file", "function"), KERNELS)
def test_no_multiply_uses_an_accumulator_that_was_released(compiler, file, function):
    """QEMU does not notice a multiply into an accumulator that xxmfacc has released; hardware may compute anything."""
    if compiler == "gcc":  # GCC 12 loses it behind some moves, so it must not move any
        assert count(assembly(compiler, file)[function], "xxmtacc") == 0
    released: set[str] = set()
    for line in assembly(compiler, file)[function]:
        code, _, operands = line.partition(" ")
        if line.endswith(":") or code.startswith("b"):
            released = set()
        elif code == "xxmfacc":
            released.add(operands)
        elif code in ("xxsetaccz", "xxmtacc"):
            released.discard(operands)
        elif MULTIPLY.fullmatch(code):
            assert operands.partition(",")[0] not in released, line


@pytest.mark.skipif(MCA is None, reason="llvm-mca (LLVM 14 or newer) is not installed")
def test_the_inner_loop_reaches_the_ceiling_of_two_multiplies_a_cycle(compiler):
    packed, in_place = whole_tile_loops(compiler)
    assert multiplies_a_cycle(packed) >= 1.9  # 1.96
    assert multiplies_a_cycle(in_place) >= 1.8  # 1.85: the window of 44 operations holds 5 more additions a round


def test_packing_16_windows_of_3_taps_loads_5_vectors_instead_of_12(compiler):
    """The loop over channels of a whole tile: 3 taps of 4 vectors are stored, and all taps but the first are shifts."""
    whole = []
    for lines in assembly(compiler, "pack.c").values():
        for loop in innermost_loops(lines):
            channels, rest = divmod(count(loop, STORE), 12)
            if channels and not rest and count(loop, "vsldoi|xxsldwi") == 8 * channels:
                whole.append((channels, loop))
    assert whole
    for channels, loop in whole:
        assert count(loop, VECTOR_LOAD) == 5 * channels


def test_a_big_endian_build_is_refused_with_the_reason(tmp_path):
    meson, compiler = shutil.which("meson"), shutil.which("powerpc64le-linux-gnu-gcc")
    if not meson or not compiler:
        pytest.skip("meson or powerpc64le-linux-gnu-gcc is not installed")
    root = NATIVE.parent
    cross = (root / "cross" / "power10.ini").read_text()
    (tmp_path / "big.ini").write_text(cross.replace("endian = 'little'", "endian = 'big'"))
    done = subprocess.run([meson, "setup", tmp_path / "build", root, "--cross-file", tmp_path / "big.ini"], capture_output=True, text=True)
    assert done.returncode and "big-endian" in done.stdout and "little-endian POWER" in done.stdout
