# SPDX-License-Identifier: Apache-2.0
"""In-core cycles of the POWER10 routines from a scheduling model: what they would take, worked out from the instructions they execute.

    meson setup build-power10 --cross-file cross/power10.ini && ninja -C build-power10
    python lab/fits/static_cycles.py build-power10 > lab/data/power10/static.json

QEMU gives the exact instructions of one call (lab/fits/static_calls.c, single steps), llvm-mca -mcpu=pwr10 the cycles that LLVM's model of
the core needs for them. The model has pipes, latencies, a dispatch of 8 and a window of 44 operations; it has no caches (every
load hits L1) and predicts every branch. Nothing here is a measurement: the numbers are of kind `static`.

loops      the instructions between two passes of the address that a call meets most often: cycles per value of k over ROUNDS passes,
           multiply-adds (as the registry counts them) per cycle, instructions per value of k, loads and stores
           through the stack pointer (spills)
calls      whole calls of k in STEPS, CALLS of them back to back, by least squares: T(k) = call + k * step. `call` is what a call costs
           beyond its k loop: it includes the store of the output and overlaps with neighbouring calls
packing    whole calls of few and of many channels: T(c) = call + c channel; a channel packs taps x ceil(count / lanes) vectors
fit        the constants of the machine file
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pysim.machine.cpu import Unit
from pysim.machine.load import load
from pysim.problem.dtypes import RESULT_BYTES, SIZES
from pysim.registry.cpu import Kernel, kernels

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
LLVM = ("-mtriple=powerpc64le-linux-gnu", "-mcpu=pwr10")
ROUNDS, CALLS = 200, 10
STEPS = (64, 96, 147, 192, 288)  # k as layers have it: not always a multiple of what a loop is unrolled by
CHANNELS = (4, 12)
FIRST = "f32_outer_16x8__mma"
GER = re.compile(r"^(pm)?xv\w+ger\w*$")


class Build(NamedTuple):
    """The traced program: where its instructions lie, as text that an assembler reads."""

    program: Path
    text: dict[int, str]
    symbols: dict[str, tuple[int, int]]  # first address and the one behind the last


def run(*command: str | Path, stdin: str | None = None) -> str:
    done = subprocess.run([str(word) for word in command], input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr}")
    return done.stdout


def link(build: Path, compiler: str, folder: Path) -> Build:
    """static_calls with the objects of a build; these are the ones that the library has."""
    objects = sorted(path for part in build.glob("libpysim*.p") for path in part.glob("*.o"))
    if not objects:
        raise SystemExit(f"{build} has no objects of the library; it should be a folder in which ninja built it")
    program, source = folder / "static_calls", ROOT / "lab" / "fits" / "static_calls.c"
    options = ["-O1", "-static", "-no-pie", f"-I{NATIVE}"]
    run(*compiler.split(), *options, source, *objects, "-lpthread", "-lm", "-o", program)
    text = {}
    for line in run("llvm-objdump", "-d", "--mcpu=pwr10", "--no-show-raw-insn", program).splitlines():
        if found := re.match(r"^\s*([0-9a-f]+):\s+(\S.*)$", line):
            text[int(found[1], 16)] = found[2]
    symbols = {}
    for line in run("llvm-nm", "--print-size", "--defined-only", program).splitlines():
        if len(words := line.split()) == 4:
            symbols[words[3]] = int(words[0], 16), int(words[0], 16) + int(words[1], 16)
    return Build(program, text, symbols)


def trace(build: Build, *arguments: object) -> list[int]:
    """Addresses of the instructions of one call, in order."""
    words = [str(word) for word in arguments]
    log = build.program.with_suffix(".log")
    run("qemu-ppc64le", "-cpu", "power10", "-singlestep", "-d", "exec,nochain", "-D", log, build.program, *words)
    first, last = build.symbols["trace_begin"][0], build.symbols["trace_end"][0]
    low, high = build.symbols["main"]
    found: list[int] = []
    inside = False
    with log.open() as lines:
        for line in lines:
            address = int(line.split("/", 2)[1], 16)
            inside = inside and address != last
            if inside and not low <= address < high:
                found.append(address)
            inside = inside or address == first
    return found[1:]  # without trace_begin's return


def loop_of(addresses: Sequence[int]) -> tuple[list[int], int]:
    """The loop of a call: the addresses of one pass, and how many passes there are."""
    counted = Counter(addresses)
    passes = max(counted.values())
    head = min(address for address, count in counted.items() if count == passes)
    places = [place for place, address in enumerate(addresses) if address == head]
    bodies = Counter(tuple(addresses[a:b]) for a, b in pairwise(places))
    return list(bodies.most_common(1)[0][0]), passes


def words(build: Build, addresses: Sequence[int]) -> list[str]:
    """Instructions as an assembler reads them: branches go to the next line, and calls and returns, which it costs apart, are branches."""
    lines = (re.sub(r"0x[0-9a-f]+ <.*>$", ".+4", build.text[address]) for address in addresses)
    return [re.sub(r"^(bl|blr|bctr|bctrl)( .*)?$", "b .+4", line) for line in lines]


def cycles(lines: Sequence[str], times: int) -> float:
    """Cycles of one of `times` repetitions."""
    report = run("llvm-mca", *LLVM, f"-iterations={times}", "--instruction-info=0", "--resource-pressure=0", "-", stdin="\n".join(lines))
    found = re.search(r"^Total Cycles:\s+(\d+)$", report, re.MULTILINE)
    assert found, report
    return int(found[1]) / times


def spills(lines: Sequence[str]) -> int:
    """Loads and stores of vectors through the stack pointer."""
    return sum(1 for line in lines if re.match(r"(p?lxv|p?stxv|lf|stf)\w*\s.*\(1\)(, 0)?$", line))


def loop(build: Build, row: Kernel) -> dict[str, Any]:
    """The loop of a full tile; `fma_per_cycle` are multiply-adds as the registry counts them."""
    body, passes = loop_of(trace(build, "kernel", row.name, STEPS[-1], row.windows, row.filters, 0))
    lines = words(build, body)
    each, gers = cycles(lines, ROUNDS), sum(1 for line in lines if GER.match(line.split()[0]))
    a_step, rank = row.instructions(row.windows, row.filters), RESULT_BYTES[row.dtype] // SIZES[row.dtype]
    steps = gers // a_step * rank if gers else round(STEPS[-1] / passes)
    multiply_adds = gers or steps * a_step
    return {
        "steps": steps,
        "cycles_per_step": each / steps,
        "fma_per_cycle": multiply_adds / each,
        "instructions_per_step": len(lines) / steps,
        "counts": dict(Counter(line.split()[0] for line in lines)),
        "spills": spills(lines),
        "text": lines,
    }


def calls(build: Build, row: Kernel) -> list[dict[str, Any]]:
    """What calls of every shape cost beyond their steps, storing (beta 0) and accumulating (beta 1)."""
    lanes = row.lane_windows
    shapes = [(w, f) for f in (row.filters, row.filters // 2) for w in (row.windows, *range(row.windows - 1, 0, -lanes), lanes)]
    return [call(build, row, *shape, beta) for shape in shapes for beta in (0, 1)]


def call(build: Build, row: Kernel, windows: int, filters: int, beta: int) -> dict[str, Any]:
    """T(k) = call + k * step of whole calls back to back."""
    traces = [words(build, trace(build, "kernel", row.name, k, windows, filters, beta)) for k in STEPS]
    times = [cycles(lines, CALLS) for lines in traces]
    step, each = np.polyfit(STEPS, times, 1)
    instructions = np.polyfit(STEPS, [len(lines) for lines in traces], 1)[1]
    return {
        "windows": windows,
        "filters": filters,
        "beta": beta,
        "vectors": filters * -(-windows // row.lane_windows),
        "step": step,
        "call": each,
        "instructions": instructions,
    }


def packing(build: Build, row: Kernel) -> list[dict[str, Any]]:
    """Whole calls of the packing routine of one run of windows; `channel` is what one more channel takes."""
    found = []
    for taps, stride in ((1, 1), (3, 1), (5, 1), (7, 1), (1, 2), (3, 2), (7, 2)):
        for count in sorted({row.windows, row.windows - 2, row.windows // 2, 2}):
            few, many = (words(build, trace(build, "segment", row.name, taps, stride, count, c)) for c in CHANNELS)
            times, more = (cycles(few, CALLS), cycles(many, CALLS)), CHANNELS[1] - CHANNELS[0]
            channel = (times[1] - times[0]) / more
            found.append(
                {
                    "taps": taps,
                    "stride": stride,
                    "count": count,
                    "vectors": taps * -(-count // row.lane_windows),
                    "channel": channel,
                    "call": times[0] - CHANNELS[0] * channel,
                    "instructions": (len(many) - len(few)) / more,
                    "loads": (memory(many, "l") - memory(few, "l")) / more,
                    "stores": (memory(many, "st") - memory(few, "st")) / more,
                }
            )
    return found


def memory(lines: Sequence[str], kind: str) -> int:
    """Vectors loaded ("l") or stored ("st"), whole or in part; a pair counts as two."""
    names = [line.split()[0] for line in lines]
    return sum(2 if "vp" in name else 1 for name in names if re.match(rf"p?{kind}xv", name))


def fit(loops: dict[str, Any], called: dict[str, Any], packed: dict[str, Any], unit: Unit) -> dict[str, Any]:
    """The constants of the machine file: rates of the loops by kernel, and of the FP32 kernel what lies around them.

    A full tile's call is call_cycles + its vectors / stores_per_cycle; packing at stride 1, several taps, is
    vectors (1 / stores_per_cycle + pack_cycles) a channel and pack_call_cycles a call.
    """
    first = called[FIRST]
    store = unit.stores_per_cycle.value
    straight = [one for one in packed[FIRST] if one["stride"] == 1 and one["taps"] > 1]
    per_vector = sum(one["channel"] for one in straight) / sum(one["vectors"] for one in straight)
    full = next(one for one in first if not one["beta"])
    return {
        "fma_per_cycle": {name: one["fma_per_cycle"] for name, one in loops.items()},
        "call_cycles": full["call"] - full["vectors"] / store,
        "pack_call_cycles": float(np.mean([one["call"] for one in straight])),
        "pack_cycles": per_vector - 1 / store,
    }


def tables(document: dict[str, Any]) -> str:
    """Loops, calls of the FP32 kernel and its packing of whole tiles as Markdown."""
    rows = [["loop of a full tile", "cycles per k", "multiply-adds per cycle", "instructions per k", "spills"]]
    for name, one in document["loops"].items():
        numbers = (f"{one[key]:.2f}" for key in ("cycles_per_step", "fma_per_cycle", "instructions_per_step"))
        rows.append([f"`{name}`", *numbers, str(one["spills"])])
    calls = [["windows x filters", "cycles per k", "call, storing", "call, accumulating"]]
    for store, add in zip(*(iter(document["calls"][FIRST]),) * 2, strict=True):
        calls.append([f"{store['windows']}x{store['filters']}", f"{store['step']:.2f}", f"{store['call']:.0f}", f"{add['call']:.0f}"])
    packed = [["taps, stride, windows", "cycles a vector", "loads", "stores", "instructions", "cycles a call"]]
    whole = max(one["count"] for one in document["packing"][FIRST])
    for one in (one for one in document["packing"][FIRST] if one["count"] == whole):
        counts = (f"{one[key]:.0f}" for key in ("loads", "stores", "instructions", "call"))
        packed.append([f"{one['taps']}, {one['stride']}, {one['count']}", f"{one['channel'] / one['vectors']:.2f}", *counts])
    return "\n".join(map(_markdown, (rows, calls, packed)))


def _markdown(rows: list[list[str]]) -> str:
    ruled = [rows[0], ["---", *["--:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--compiler", default="powerpc64le-linux-gnu-gcc -mcpu=power10")
    given = parser.parse_args()
    unit = load("power10-e1050").unit("mma")
    assert unit
    loops, called, packed = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        build = link(given.build, given.compiler, Path(folder))
        for row in kernels():
            if row.target not in ("mma", "portable"):
                continue
            print(row.name, file=sys.stderr)
            loops[row.name] = loop(build, row)
            if row.target == "mma":
                called[row.name], packed[row.name] = calls(build, row), packing(build, row)
    document = {
        "schema": 1,
        "command": " ".join(["python", *sys.argv]),
        "versions": {
            "llvm-mca": run("llvm-mca", "--version").split("\n")[0].strip(),
            "compiler": run(*given.compiler.split(), "--version").split("\n")[0],
            "qemu": run("qemu-ppc64le", "--version").split("\n")[0],
        },
        "steps": STEPS,
        "fit": fit(loops, called, packed, unit),
        "loops": loops,
        "calls": called,
        "packing": packed,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
