#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures convolutions on this computer's GPU: rows of pysim's registry, every algorithm of cuDNN, and PyTorch, interleaved in one run.

    lab/benchmarks/cuda/conv.py -o conv-h200.jsonl [--set opencnn,im2win,resnet50] [--dtype f32,tf32,f16,bf16] [--rows planned|all|NAME...]
    lab/benchmarks/cuda/conv.py -o conv-h200.jsonl --resume ...          continues a stopped run, with the same options
    lab/benchmarks/cuda/conv.py --summary conv-h200.jsonl...             prints the acceptance figures and their bars from the data

Each candidate is checked before it is timed. Its output starts as NaN and must have none left. Peers run on random operands and are
compared with NumPy's float64 at sampled windows of all images, including borders; pysim's kernels are checked as by `pysim compare`. The
error bounds are in pysim.check.bounds. A wrong candidate is recorded as wrong and not timed; one that refuses is recorded with its reason.

Timing: in each round every candidate runs once, between two events; the order shifts by one each round. Short calls follow untimed ones, so
that the device is busy while the host launches the timed call (pysim.measure.events.leads). Caches are not flushed between calls. Long
calls are sampled for SPENT seconds, at least FEWEST times. The planner never chooses im2win's ablations; they run data parallel, rasterised
in bands of 8. If the best launch of im2win's fused form or of Winograd's single one reduces split-K through the workspace, the best launch
without a workspace runs, too. Needs the CUDA library ($PYSIM_CUDA_LIBRARY); conv_data.py defines the file's format.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import conv_data
import msgspec
import numpy as np
from conv_data import CUDNN, OURS, TORCH, Candidate, Header, Line

from pysim import planner
from pysim.algorithms.interface import DIRECT_SUM
from pysim.calibration import host
from pysim.check.bounds import bound_of
from pysim.check.fills import held
from pysim.check.reference import Trial, trial
from pysim.check.verdict import on_random
from pysim.comparison import bench as benches
from pysim.comparison.bench import release
from pysim.comparison.peer_timings import checked, reason_of
from pysim.errors import MissingError, PlanError, PysimError, StoreError, choose, run_script
from pysim.machine.gpu import Gpu
from pysim.measure import events
from pysim.peers import cudnn, torch
from pysim.peers.peer import Operands as Given
from pysim.peers.peer import Ready, Scratch
from pysim.problem.conv import Conv
from pysim.problem.text import Layer
from pysim.record.plan import LAYOUTS, Plan
from pysim.record.schedule import GpuSchedule, name_of
from pysim.registry.cuda import conv_kernels
from pysim.runtime import cuda
from pysim.runtime.cuda import DeviceArray

SPENT, FEWEST = 0.3, 5  # seconds of sampling per candidate, and its least number of samples
WARMUPS = 3
EVERY = 1_000_000  # more than the number of plans


@lru_cache(maxsize=1)  # all candidates get the same operands, in either layout
def trial_of(workload: Conv) -> Trial:
    return trial(workload, held(result_of(workload.dtype)), on_gpu=True, seed=1)


def result_of(dtype: str) -> str:
    return "f32" if dtype == "tf32" else dtype


class Operands:
    """Random input and filters on the device in each layout, the output, and the expected values at sampled windows."""

    def __init__(self, w: Conv, dtype: str, layouts: list[str]) -> None:
        self.dtype, self.result = dtype, result_of(dtype)
        self.workload = msgspec.structs.replace(w, dtype=dtype)
        self.trial = trial_of(self.workload)
        self.at = {layout: [self._sent(array, layout) for array in self.trial.random] for layout in layouts}
        outputs = w.batch * w.filters * w.windows
        self.y, self._nan = DeviceArray((outputs,), self.result), DeviceArray((outputs,), self.result)
        self._nan.fill(np.full(self.y.nbytes, 0xFF, np.uint8))
        self._scratch = Scratch()

    def _sent(self, array: np.ndarray, layout: str) -> DeviceArray:
        lies = np.ascontiguousarray(array if layout == "nchw" else array.transpose(0, 2, 3, 1))
        return DeviceArray(lies.shape, self.result).fill(lies)

    def given(self, layout: str) -> Given:
        x, filters = self.at[layout]
        return Given(x, filters, self.y, layout, self._scratch)

    def check(self, ready: Ready, layout: str) -> tuple[str, float]:
        """Checks what a call wrote to y. Returns (what is wrong or "", largest |got - want| / |A||B|)."""
        cuda.copy(self.y.pointer, self._nan.pointer, self.y.nbytes, "PYSIM_ON_DEVICE")
        (ready.write or ready.call)()
        cuda.synchronize()
        w = self.workload
        lies = (w.batch, w.filters, w.out_h, w.out_w) if layout == "nchw" else (w.batch, w.out_h, w.out_w, w.filters)
        found = self.y.read(np.empty(self.y.shape, held(self.result))).reshape(lies)
        judged = on_random(self.trial, ready.bound, found if layout == "nchw" else found.transpose(0, 3, 1, 2))
        return "" if judged.passed else judged.reason, judged.error


# Candidates


class Field:
    """The candidates of one problem: the calls of those that can be timed, and a record of each."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[], object]] = {}
        self.known: dict[str, Candidate] = {}
        self.kept: list[object] = []  # keeps alive the memory that the calls use

    def enter(self, name: str, known: Candidate, make: Callable[[], tuple[Callable[[], object], dict[str, Any]]]) -> None:
        """Adds a candidate, which `make` prepares, checks and describes. If that fails in any way, the reason is recorded."""
        try:
            call, facts = make()
        except Exception as error:
            self.known[name] = msgspec.structs.replace(known, refused=reason_of(error))
            return
        self.known[name] = msgspec.structs.replace(known, **facts)
        if not self.known[name].wrong:
            self.calls[name] = call

    def drop(self, name: str, reason: str) -> None:
        """Removes a candidate that failed after its check."""
        self.calls.pop(name, None)
        self.known[name] = msgspec.structs.replace(self.known[name], refused=reason)

    def time(self, samples: int) -> None:
        """Times all calls, interleaved, and writes the results to `known`."""
        if not self.calls:
            return
        clock = events.Events()
        warm = {name: seconds for name in list(self.calls) if (seconds := self._warmed(name, clock)) is not None}
        leads = {name: events.leads(seconds) for name, seconds in warm.items()}
        most = {name: max(FEWEST, math.ceil(SPENT / seconds)) for name, seconds in warm.items()}
        times: dict[str, list[float]] = {name: [] for name in leads}
        for turn in range(samples):
            names = [name for name in self.calls if turn < most[name]]
            at = turn % len(names) if names else 0
            for name in names[at:] + names[:at]:
                try:
                    for _ in range(leads[name]):
                        self.calls[name]()
                    times[name].append(clock.seconds(self.calls[name]))
                except Exception as error:
                    self.drop(name, f"failed in round {turn + 1}: {reason_of(error)}")
        for name in self.calls:
            low, middle, high = (float(value) for value in np.percentile(times[name], [25, 50, 75]))
            measured = {"seconds": middle, "quartiles": (low, high), "min_seconds": min(times[name]), "samples": len(times[name])}
            self.known[name] = msgspec.structs.replace(self.known[name], **measured)

    def _warmed(self, name: str, clock: events.Events) -> float | None:
        """Runs a call WARMUPS times. Returns the seconds of the last, or None if it failed."""
        try:
            return [clock.seconds(self.calls[name]) for _ in range(WARMUPS)][-1]
        except Exception as error:
            self.drop(name, f"failed when warmed up: {reason_of(error)}")
            return None


def add_cudnn(field: Field, operands: Operands, layout: str) -> None:
    """Adds every algorithm of cuDNN."""
    for algorithm in cudnn.ALGORITHMS:
        _add(field, operands, Candidate(who=CUDNN, algorithm=algorithm, layout=layout), cudnn)


def add_torch(field: Field, operands: Operands, layout: str) -> None:
    """Adds PyTorch."""
    _add(field, operands, Candidate(who=TORCH, layout=layout), torch)


def _add(field: Field, operands: Operands, known: Candidate, library: Any) -> None:
    def made() -> tuple[Callable[[], object], dict[str, Any]]:
        ready = library.make(operands.workload, operands.given(known.layout), known.algorithm)
        wrong, error = operands.check(ready, known.layout)
        return ready.call, {"wrong": wrong, "error": finite(error), "workspace_bytes": ready.workspace_bytes}

    field.enter(named(known.who, known.algorithm, known.layout), known, made)


def add_pysim(field: Field, w: Conv, dtype: str, layout: str, rows: list[str], top: int, gpu: Gpu) -> str:
    """Adds rows of pysim's registry in a layout. Returns the planned candidate's name, or "".

    With "all": the best predicted schedule of each row, and the `top` best predicted schedules of all rows, numbered by rank.
    """
    nobody = Candidate(who=OURS, layout=layout)
    try:
        problem = msgspec.structs.replace(w, dtype=dtype)
        plans = planner.plans(problem, gpu, top=EVERY, layout=layout)
        bench = benches.GpuBench(problem, gpu.l2_bytes.value, layout, made=lambda: trial_of(problem))
    except Exception as error:
        field.known[named(OURS, "", layout)] = msgspec.structs.replace(nobody, refused=reason_of(error))
        return ""
    field.kept.append(bench)
    best: dict[str, Any] = {}
    for plan in plans:
        best.setdefault(plan.kernel, plan)
    known = {row.name: row for row in conv_kernels()}
    requested = [name for name, row in known.items() if row.dtype == dtype and (rows == ["all"] or name in rows)]
    wanted: dict[str, Any] = {name: best.get(name) for name in requested}
    for name in requested:
        if known[name].ablation:
            schedule = GpuSchedule(name, "data_parallel", 1, False, 8 if known[name].block_k else 1)
            with suppress(PlanError):  # raised if it does not support this problem
                wanted[name] = planner.plan(problem, gpu, layout=layout, name=name_of(known[name].algorithm, schedule))
    if rows == ["planned"]:
        wanted = {plans[0].kernel: plans[0]}
    if rows == ["all"]:
        wanted |= {f"{plan.kernel} #{rank}": plan for rank, plan in enumerate(plans[:top], 1) if plan is not best[plan.kernel]}
        alone: dict[str, Any] = {}
        for rank, plan in enumerate(plans, 1):
            if known[plan.kernel].fused and not plan.workspace_bytes and plan.kernel not in alone:
                alone[plan.kernel] = f"{plan.kernel} #{rank}"
                wanted |= {} if plan is best[plan.kernel] else {alone[plan.kernel]: plan}

    def made(name: str) -> tuple[Callable[[], object], dict[str, Any]]:
        if (plan := wanted[name]) is None:
            reasons = [item.reason for item in plans[0].rejected if item.what == name]
            raise MissingError(reasons[0] if reasons else "the planner has no legal schedule of it for this problem")
        bound = bound_of(plan) if isinstance(plan, Plan) else DIRECT_SUM  # ablations compute direct sums

        def make(operands: Given) -> Ready:
            launch = bench.launch(plan.schedule, operands)
            return Ready(launch.run, "", launch.workspace_bytes, bound)

        verdict, ready = checked(bench, make)
        facts = {"wrong": "" if verdict.passed else verdict.reason, "error": finite(verdict.error), "predicted_seconds": plan.cost.seconds}
        return ready.call, facts | {"workspace_bytes": ready.workspace_bytes, "schedule": msgspec.to_builtins(plan.schedule)}

    for name in wanted:
        row = known[name.partition(" ")[0]]
        about = msgspec.structs.replace(nobody, algorithm=row.algorithm, form=row.variant)
        field.enter(named(OURS, name, layout), about, lambda one=name: made(one))
    return named(OURS, plans[0].kernel, layout)


def named(who: str, what: str, layout: str = "nchw") -> str:
    return " ".join(word for word in (who, what, "" if layout == "nchw" else layout) if word)


def finite(value: float) -> float | None:
    return float(f"{value:.3g}") if math.isfinite(value) else None


# A run


def measure(name: str, layer: Layer, dtype: str, options: argparse.Namespace, gpu: Gpu) -> Line:
    """Measures one problem. PysimError if the operands cannot be allocated."""
    w, field = layer.workload, Field()
    assert isinstance(w, Conv)
    own = [conv_data.USED[dtype] if layout == "used" else layout for layout in options.own] if OURS in options.parties else []
    chosen = [add_pysim(field, w, dtype, layout, options.rows, options.top, gpu) for layout in own]
    if {CUDNN, TORCH} & set(options.parties):
        operands = Operands(w, dtype, options.layouts)
        for layout in options.layouts:
            if CUDNN in options.parties:
                add_cudnn(field, operands, layout)
            if TORCH in options.parties:
                add_torch(field, operands, layout)
    field.time(options.samples)
    return Line(
        set=name,
        label=layer.label,
        problem=conv_data.text_of(w, dtype),
        dtype=dtype,
        planned=next(iter(chosen), ""),
        candidates=field.known,
    )


def versions() -> dict[str, str]:
    """Versions of the libraries measured, or why one is missing."""
    try:
        found = {OURS: metadata.version("pysim")}
    except metadata.PackageNotFoundError:
        found = {OURS: "a source tree"}
    try:
        found[CUDNN] = cudnn.version()
    except MissingError as error:
        found[CUDNN] = str(error)
    try:
        found[TORCH] = torch.version()
    except MissingError as error:
        found[TORCH] = str(error)
    return found


def begin(options: argparse.Namespace) -> set[tuple[str, str]]:
    """Checks the output file and writes this run's header to it. Returns the problems that it has already."""
    device = cuda.devices()[0]
    path, done = options.out, set()
    if path.exists() and path.stat().st_size:
        if not options.resume:
            raise StoreError(f"{path} exists: --resume goes on with it, or name another file")
        conv_data.mend(path)
        for record in conv_data.read(path):
            if isinstance(record, Header) and record.device != device.name:
                raise StoreError(f"{path} was measured on {record.device}, and this is {device.name}: name another file")
            if isinstance(record, Line):
                done.add(record.key)
    driver = f"{device.driver // 1000}.{device.driver % 1000 // 10}"
    command = " ".join(Path(word).name if "/" in word else word for word in sys.argv)
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    conv_data.write(path, Header(device=device.name, driver=driver, versions=versions(), command=command, date=now))
    return done


def run(options: argparse.Namespace) -> None:
    gpu, started, done = host.gpu_here(), time.monotonic(), begin(options)
    for dtype in options.dtypes:
        for name in options.sets:
            for layer in conv_data.problems(name):
                key = (name, conv_data.text_of(layer.workload, dtype))
                if key in done or options.only not in f"{layer.label} {key[1]}":
                    continue
                if time.monotonic() - started > options.seconds:
                    print("the time is over: --resume goes on", file=sys.stderr)
                    return
                line = measure_safely(name, layer, dtype, options, gpu)
                conv_data.write(options.out, line)
                print(progress(line), flush=True)
                release()
                cuda.synchronize()  # if a candidate broke the device, the run ends here, after its line is written


def measure_safely(name: str, layer: Layer, dtype: str, options: argparse.Namespace, gpu: Gpu) -> Line:
    """`measure`, or a line without timed candidates if the problem cannot be set up."""
    try:
        return measure(name, layer, dtype, options, gpu)
    except (PysimError, MemoryError) as error:
        reason = Candidate(who=OURS, refused=f"the problem cannot be set up: {reason_of(error)}")
        return Line(set=name, label=layer.label, problem=conv_data.text_of(layer.workload, dtype), dtype=dtype, candidates={OURS: reason})


def progress(line: Line) -> str:
    """One line of text for a problem: the best of each library."""
    words = [f"{line.label or line.problem:<16} {line.dtype:<5}"]
    for who in (OURS, CUDNN, TORCH):
        if timed := line.of(who):
            name, one = next(iter(timed.items()))
            words.append(f"{name} {(one.seconds or 0) * 1e6:.1f} us {line.tflops(one):.1f} TFLOP/s")
    failed = [f"{name}: WRONG {one.wrong}" for name, one in line.candidates.items() if one.wrong]
    refused = sum(bool(one.refused) for one in line.candidates.values())
    return "  ".join([*words, *failed, f"{refused} refused"])


def chosen_of(text: str, known: tuple[str, ...]) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise argparse.ArgumentTypeError(f"there is no {word!r}; {choose(word, known)}")
    return words


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])

    def add_list(flag: str, target: str, known: tuple[str, ...], words: str, default: tuple[str, ...] = ()) -> None:
        parser.add_argument(flag, dest=target, type=lambda text: chosen_of(text, known), default=list(default or known), help=words)

    add_list("--set", "sets", (*conv_data.SETS, *conv_data.NETWORKS, *conv_data.listed()), "sets, by comma", conv_data.SETS)
    add_list("--dtype", "dtypes", conv_data.DTYPES, "types, by comma")
    add_list("--layouts", "layouts", LAYOUTS, "layouts of the peers, by comma")
    add_list("--own", "own", LAYOUTS, "layouts that pysim is measured in, by comma (default: that in which a type is used)", ("used",))
    add_list("--parties", "parties", (OURS, CUDNN, TORCH), "who takes part, by comma")
    parser.add_argument("--rows", nargs="+", default=["all"], help='"planned", "all" (the default), or kernels by name')
    parser.add_argument("--top", type=int, default=10, help="of the best predicted schedules, beside the best of each row")
    parser.add_argument("--only", default="", help="problems whose label or text contains this")
    parser.add_argument("--samples", type=int, default=20, help="of each candidate")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no other problem is started")
    parser.add_argument("--resume", action="store_true", help="go on with a file that exists")
    parser.add_argument("--summary", nargs="+", type=Path, metavar="FILE", help="print the figures of data files")
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args(arguments)
    if not options.summary and not options.out:
        parser.error("name the file to write with -o, or data files with --summary")
    if options.samples < 1:
        parser.error(f"--samples is {options.samples}; it should be at least 1, and 20 for figures that are reported")
    return options


def main() -> None:
    options = parsed()
    if options.summary:
        print(conv_data.summary(options.summary), end="")
    else:
        run(options)


if __name__ == "__main__":
    run_script(main)
