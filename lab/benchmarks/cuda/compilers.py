# SPDX-License-Identifier: Apache-2.0
"""Whole networks on a GPU beside PyTorch and its compiler, many compiled at once and one timed at a time.

    python lab/benchmarks/cuda/compilers.py -o FILE [--seconds 280] [--processes 10] [NETWORK:BATCH:PRECISION[:EXTRA+EXTRA] ...]

Networks of `zoo.py`; precisions as in models.py: f32 (TF32 off), tf32, half, bf16. A process for each case. It captures, plans and
compiles beside the others, on one core, and waits for its turn on the GPU whenever something runs there: Inductor's choice of kernels, and
times.
Models and inputs are channels last, for all alike. Calls are timed as in models.py, medians of `--rounds`.

    PyTorch   eager and its CUDA graph (in f32 also of NCHW images); Inductor in a CUDA graph
    pysim     `optimize` in a CUDA graph: the default choice ("pysim"), and with the compiler where the default has none or the other way
              round ("pysim compiled", "pysim alone")
    EXTRA     reduce-overhead, max-autotune: modes of torch.compile; measure: `optimize(measure=1)`; profile: the times of all kernels;
              brief: of pysim only the default choice; twice: Inductor's calls captured a second time, into other memory

A line of the output has for each way: milliseconds, the largest difference from float64 over the largest output, root mean squares of both,
bytes at the peak of a call and bytes held between calls. `expected`: seconds that `pysim.torch.capture.compiled` expects, by which the
default chooses: [between layers one by one, between layers compiled, layers one by one, layers by the faster one]. `layers`: how many, and
how many of them pysim computes by default; `decisions` (with profile): their expected times, and the operators after them
that a plan computes; `between` (likewise): elements and bytes of the kernels that are expected of the compiler between layers.
"""

import argparse
import copy
import fcntl
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import ismethod
from pathlib import Path
from typing import Any

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # more for a few cases with max-autotune

import torch
import torch._dynamo
import torch._inductor.compile_fx as inductor
import torch._inductor.scheduler as scheduler
import torch._inductor.select_algorithm as selection
from models import PRECISIONS, Candidates, captured, timed, under
from zoo import NETWORKS, model_and_input

import pysim.torch
from pysim.torch import measured as ways_of_graphs
from pysim.torch.capture import compiled

DEVICE = "cuda"
TYPES = ("half", "tf32", "f32")
MEASURE = (selection.AlgorithmSelectorCache, "benchmark_in_current_process"), (scheduler.Scheduler, "benchmark_codegened_module")
KERNEL_NAME = 80  # letters of a kernel's name that are kept
Call = Callable[[], Any]


class Turn:
    """The GPU, which one process has at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        self._held = False

    def take(self) -> None:
        if not self._held:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._held = True

    def leave(self) -> None:
        if self._held:
            torch.cuda.synchronize()
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._held = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        held = self._held
        self.take()
        try:
            yield
        finally:
            if not held:
                self.leave()


def compile_beside_others(turn: Turn) -> None:
    """From now on Inductor compiles while others have the GPU; what it compiled runs in turn, and what it measures meanwhile."""
    compile_fx = inductor.compile_fx
    for owner, name in MEASURE:
        measuring = getattr(owner, name)

        def in_turn(*args: Any, _measuring: Any = measuring, **kwargs: Any) -> Any:
            with turn.taken():
                return _measuring(*args, **kwargs)

        setattr(owner, name, staticmethod(in_turn) if ismethod(measuring) else in_turn)

    def compiling(*args: Any, **kwargs: Any) -> Any:
        turn.leave()
        try:
            return compile_fx(*args, **kwargs)
        finally:
            turn.take()

    inductor.compile_fx = compiling


def noted_expectations() -> tuple[list[list[float]], dict[str, list[str]], list[tuple[int, int]]]:
    """What `compiled` expects of each graph from now on; by layer, the operators that its kernel computes beside its own; the elements and
    bytes of each kernel that it expects of the compiler between layers."""
    expected, parts, kernels, expected_of = list[list[float]](), dict[str, list[str]](), list[tuple[int, int]](), compiled.expected_of

    def noted(between: Any, layers: Any, joining: float) -> Any:
        found = expected_of(between, layers, joining)
        expected.append([float(f"{one:.4g}") for one in found])
        parts.update((layer.name, [*layer.replaced]) for layer in layers)
        kernels[:] = between.kernels
        return found

    compiled.expected_of = noted
    return expected, parts, kernels


def kernels_of(call: Call) -> list[tuple[str, float]]:
    """Name and microseconds of each kernel of a call, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    events = [one for one in profile.events() if one.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda one: one.time_range.start)
    return [(one.name[:KERNEL_NAME], round(one.time_range.elapsed_us(), 2)) for one in events[-(len(events) // 3) :]]


def add_pytorchs(found: Candidates, model: Any, x: Any, precision: str, extras: list[str], turn: Turn) -> None:
    modes = [one for one in extras if one in ("reduce-overhead", "max-autotune")]
    for mode in ("default", *modes):
        turn.leave()
        call = partial(torch.compile(model, mode=mode, dynamic=False), x)
        found.add(f"compile {mode}", lambda call=call: call)
    turn.take()
    if call := found.calls.get("compile default"):
        found.add("compile default graph", partial(captured, call))
        if "twice" in extras:
            found.add("compile default second graph", partial(captured, call))
    found.add("eager", lambda: partial(model, x))
    found.add("graph", lambda: captured(partial(model, x)))
    if x.dim() == 4 and precision == "f32":
        first = copy.deepcopy(model).to(memory_format=torch.contiguous_format), x.contiguous()
        found.add("nchw graph", lambda: captured(partial(*first)))
    turn.leave()


def add_pysims(found: Candidates, model: Any, x: Any, extras: list[str], turn: Turn) -> dict[str, Any]:
    expected, parts, kernels = noted_expectations()
    ours = pysim.torch.optimize(model, cuda_graph="caller")
    ours(x)
    turn.take()
    found.add("pysim graph", lambda: captured(partial(ours, x)))
    turn.leave()
    decisions = [*pysim.torch.report(ours)]
    by_compiler = any(note.startswith("compiled") for note in pysim.torch.report(ours).notes)
    if "brief" not in extras:
        other = pysim.torch.optimize(model, cuda_graph="caller", compiler=not by_compiler)
        other(x)
        turn.take()
        label = "pysim alone" if by_compiler else "pysim compiled"
        found.add(f"{label} graph", lambda: captured(partial(other, x)))
        turn.leave()
    ways = dict[str, float]()
    if "measure" in extras:
        measured, inner = pysim.torch.optimize(model, cuda_graph="caller", measure=1.0), ways_of_graphs.measured
        ways_of_graphs.measured = lambda *how: ways.update(found := inner(*how)) or found
        measured(x)
        found.add("pysim measured graph", lambda: captured(partial(measured, x)))
        turn.leave()
    row = {
        "by_compiler": by_compiler,
        "ways_ms": {name: round(1e3 * one, 4) for name, one in ways.items()},
        "expected": expected[0] if expected else [],
        "graphs": len(expected),
    }
    row |= {"layers": [len(decisions), sum(one.runs == "pysim" for one in decisions)], "notes": pysim.torch.report(ours).notes}
    table = [[one.layer, one.problem, one.runs, one.predicted_seconds, one.torch_seconds, parts.get(one.layer)] for one in decisions]
    return row | ({"decisions": table, "between": kernels} if "profile" in extras else {})


@torch.no_grad()
def measure(case: str, given: argparse.Namespace) -> None:
    name, batch, precision, *more = case.split(":")
    extras, turn = (more[0].split("+") if more else []), Turn(given.output.with_suffix(".turn"))
    torch.set_num_threads(1)
    seconds = {"start": time.time()}
    compile_beside_others(turn)
    torch.zeros(1, device=DEVICE)  # makes the process's context, which takes a second
    model, x = model_and_input(name, int(batch), turn.take, DEVICE)
    with under("f32"):
        exact = model.double()(x if x.dtype == torch.int64 else x.double())
    model = model.to(PRECISIONS[precision])
    x = x if x.dtype == torch.int64 else x.to(PRECISIONS[precision])
    if x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    turn.leave()
    torch.backends.cudnn.benchmark = True
    row = {"model": name, "batch": int(batch), "precision": precision}
    with under(precision):
        found = Candidates(exact)
        add_pytorchs(found, model, x, precision, extras, turn)
        seconds["pytorch"] = time.time()
        row |= add_pysims(found, model, x, extras, turn)
        seconds["pysim"] = time.time()
        turn.take()
        medians = timed(found.calls, given.rounds)
        row["ms"] = {label: float(f"{value:.4g}") for label, value in medians.items()}
        keys = ("error", "mean_error", "peak_bytes", "held_bytes")
        row["ways"] = {label: [float(f"{about[key]:.3g}") for key in keys] for label, about in found.ways.items()}
        row["failed"] = found.failed
        row["weights_bytes"] = sum(one.numel() * one.element_size() for one in (*model.parameters(), *model.buffers()))
        append(given.output, row)
        best = min(value for label, value in medians.items() if not label.startswith("pysim") and "second" not in label)
        print(f"{case:<32} {best / medians['pysim graph']:.2f}x  {row['ms']}  {row['layers']} {row['expected']} {found.failed}", flush=True)
        if "profile" in extras:
            labels = [one for one in ("compile default graph", *medians) if one == "compile default graph" or one.startswith("pysim")]
            kernels = {label: kernels_of(found.calls[label]) for label in dict.fromkeys(labels) if label in found.calls}
            append(given.output.with_suffix(".kernels"), {"case": case, "kernels": kernels})
        turn.leave()
    seconds["end"] = time.time()
    spent = {later: round(seconds[later] - seconds[before]) for before, later in zip([*seconds], [*seconds][1:], strict=False)}
    print(f"{case:<32} seconds {spent}", flush=True)


def append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as out:
        out.write(json.dumps(row) + "\n")


def run(case: str, given: argparse.Namespace) -> None:
    """In a process of its own. One whose parent has touched the GPU starts anew."""
    if torch.cuda._is_in_bad_fork():
        os.execv(sys.executable, [sys.executable, __file__, "-o", str(given.output), "--rounds", str(given.rounds), "--one", case])
    try:
        measure(case, given)
    except Exception as error:
        append(given.output, {"case": case, "failed": f"{type(error).__name__}: {str(error).strip()[:300]}"})
        print(f"{case} failed: {traceback.format_exc()[-1500:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [f"{name}:{batch}:{precision}" for batch in (16, 1) for precision in TYPES for name in NETWORKS]
    parser.add_argument("cases", nargs="*", default=every, metavar="NETWORK:BATCH:PRECISION")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=280.0, help="before which the run ends")
    parser.add_argument("--last", type=float, default=60.0, help="seconds before the end from which on no case begins")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--one", help="a case, measured in this process")
    given = parser.parse_args()
    if given.one:
        return run(given.one, given)
    end = time.time() + given.seconds
    header = {"kind": "header", "torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "rounds": given.rounds}
    append(given.output, header)
    waiting, running = list(given.cases), list[multiprocessing.Process]()
    while (waiting or running) and time.time() < end:
        running = [one for one in running if one.is_alive()]
        if waiting and len(running) < given.processes and time.time() + given.last < end:
            one = multiprocessing.get_context("fork").Process(target=run, args=(waiting.pop(0), given))
            one.start()
            running.append(one)
        else:
            waiting = waiting if time.time() + given.last < end else []
            time.sleep(0.2)
    for one in running:
        one.kill()
    return None


if __name__ == "__main__":
    main()
