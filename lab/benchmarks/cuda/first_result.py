# SPDX-License-Identifier: Apache-2.0
"""Seconds to a network's first result on a GPU in this process: python lab/benchmarks/cuda/first_result.py WAY NETWORK:BATCH:PRECISION
[-o FILE] [--profile FILE] [--kept FILE]

WAY: eager, inductor, pysim (its default), pysim-alone (compiler=False), pysim-compiled (compiler=True), pysim-graph (cuda_graph=True),
pysim-load (from the file `--kept`, which another way of pysim's wrote).
Networks of `zoo.py`; precisions f32 (TF32 off), tf32, half. One JSON line: seconds since the process began when the modules are imported,
when the model is on the device, after the first call and after the second; seconds of the first call and of the second; bytes at the peak
of a third call and held after it; what pysim tells of its graphs; for each graph that was compiled how many kernels the compiler was
expected to make, how many layers it has, the expected seconds of compiling and the seconds that it took. `--profile`: the first call's
functions by time.
"""

import argparse
import cProfile
import json
import os
import pstats
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from zoo import model_and_input

WAYS = {"eager": {}, "inductor": {}, "pysim": {}, "pysim-alone": {"compiler": False}, "pysim-compiled": {"compiler": True}}
WAYS |= {"pysim-graph": {"cuda_graph": True}, "pysim-load": {}}


def age() -> float:
    """Seconds since this process began."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def made(way: str, model: Any, kept: Path | None) -> Any:
    if way == "inductor":
        return torch.compile(model)
    if way == "eager":
        return model
    if way == "pysim-load":
        return import_module("pysim.torch").load(kept, model)
    return import_module("pysim.torch").optimize(model, **WAYS[way])


def noted_compilations() -> list[list[float]]:
    """Of each graph that is compiled from now on: kernels, layers, expected seconds, seconds."""
    compiled: Any = import_module("pysim.torch.capture.compiled")
    found, kernels = list[list[float]](), list[int]()
    between, compile_graph = compiled.seconds_between, compiled.Laid.compile

    def noted(*given: Any) -> Any:
        kernels.append(len((seconds := between(*given)).kernels))
        return seconds

    def timed(graph: Any) -> Any:
        start = time.perf_counter()
        result = compile_graph(graph)
        found.append([kernels[-1], len(graph.chosen), graph.compile_seconds, round(time.perf_counter() - start, 2)])
        return result

    compiled.seconds_between, compiled.Laid.compile = noted, timed
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=[*WAYS])
    parser.add_argument("case", metavar="NETWORK:BATCH:PRECISION")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--kept", type=Path)
    given = parser.parse_args()
    name, batch, precision = given.case.split(":")
    compilations = list[list[float]]()
    if given.way.startswith("pysim"):
        import_module("pysim.torch")
        compilations = noted_compilations()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    ages = {"imports": age()}
    model, x = model_and_input(name, int(batch), lambda: None)
    if precision == "half":
        model, x = model.half(), x.half() if x.is_floating_point() else x
    torch.cuda.synchronize()
    ages["model"], seconds, profile = age(), list[float](), cProfile.Profile()
    call: Any = None
    for at in ("first", "second"):
        start = time.perf_counter()
        if given.profile and at == "first":
            profile.enable()
        call = call or made(given.way, model, given.kept)
        call(x)
        torch.cuda.synchronize()
        profile.disable()
        ages[at] = age()
        seconds.append(round(time.perf_counter() - start, 3))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call(x)
    torch.cuda.synchronize()
    row = {"way": given.way, "case": given.case, "ages": {key: round(one, 3) for key, one in ages.items()}, "seconds": seconds}
    row |= {"peak_bytes": torch.cuda.max_memory_allocated() - before, "held_bytes": torch.cuda.memory_reserved()}
    if given.way.startswith("pysim"):
        row |= {"notes": import_module("pysim.torch").report(call).notes, "compilations": compilations}
    print(json.dumps(row), flush=True)
    if given.kept and given.way != "pysim-load":
        import_module("pysim.torch").save(call, given.kept, x)
    if given.output:
        with given.output.open("a") as out:
            out.write(json.dumps(row) + "\n")
    if given.profile:
        with given.profile.open("w") as out:
            for key in ("cumulative", "tottime"):
                pstats.Stats(profile, stream=out).sort_stats(key).print_stats(60)


if __name__ == "__main__":
    main()
