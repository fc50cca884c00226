# SPDX-License-Identifier: Apache-2.0
"""Times plans with several numbers of threads, beside ONNX Runtime with as many.

    python lab/benchmarks/threads.py OUT.jsonl PROBLEM... [--threads 1 2 4] [--kinds N] [--models DIR] [--seconds S] [--set NAME]

For each problem and thread count: the plan for that count and, with --kinds, the best plans of N further kinds. Results must have the same
bits for all thread counts, and agree with ONNX Runtime's within 1e-4. All plans of a problem are timed interleaved, some samples each
after an untimed call. OUT.jsonl is a file for `lab/fits/model_errors.py`; its header names OUT.toml, the detected computer, which is
written beside it. ONNX Runtime runs the one-node models in DIR, which are created if `onnx` is installed; without --models it does not run.
"""

import argparse
import atexit
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pysim import planner
from pysim.calibration import host
from pysim.machine.write import to_toml
from pysim.measure.clock import pinned
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Workload, distinct, resolve
from pysim.runtime import cpu_launch

FEWEST = 5  # samples of a turn
PAUSE = 0.02  # seconds
PEER = "onnxruntime"
Key = tuple[int, str]  # threads, and the plan's name or PEER


def model_file(folder: Path, problem: Conv, weights: np.ndarray) -> Path:
    """The one-node model of a problem, its weights in a file of their own."""
    name = hashlib.sha256(problem.text.encode()).hexdigest()[:12]
    path = folder / f"{name}.onnx"
    weights.tofile(folder / f"{name}.bin")
    if path.exists():
        return path
    import onnx

    given = ("kernel_shape", (problem.kernel_h, problem.kernel_w)), ("strides", (problem.stride_h, problem.stride_w))
    pads = (problem.pad_top, problem.pad_left, problem.pad_bottom, problem.pad_right)
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], **dict(given), pads=pads, group=problem.groups)
    shapes = {"x": (problem.batch, problem.channels, problem.height, problem.width)}
    shapes["y"] = (problem.batch, problem.filters, problem.out_h, problem.out_w)
    ends = [onnx.helper.make_tensor_value_info(key, onnx.TensorProto.FLOAT, shape) for key, shape in shapes.items()]
    values = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=weights.shape, data_location=onnx.TensorProto.EXTERNAL)
    values.external_data.add(key="location", value=f"{name}.bin")
    graph = onnx.helper.make_graph([node], "one", ends[:1], ends[1:], [values])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


class OnnxRuntime:
    """ONNX Runtime's sessions in a process of their own, which is stopped between its turns: its threads look for work long after a call,
    on the CPUs that ours need."""

    def __init__(self) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_serve_onnxruntime, args=(theirs,), daemon=True)
        self._process.start()
        atexit.register(self._process.kill)  # whoever is stopped hears nothing else

    def first(self, path: Path, x: np.ndarray, threads: int) -> np.ndarray:
        """The result of a model, whose session the next turns with this thread count are of."""
        return np.asarray(self._ask((str(path), x, threads)))

    def turn(self, threads: int) -> list[float]:
        """Seconds of some calls after an untimed one."""
        found: list[float] = self._ask(threads)
        return found

    def _ask(self, what: object) -> Any:
        assert self._process.pid
        os.kill(self._process.pid, signal.SIGCONT)
        self._ours.send(what)
        try:
            return self._ours.recv()
        finally:
            os.kill(self._process.pid, signal.SIGSTOP)


def _serve_onnxruntime(pipe: Any) -> None:
    import onnxruntime as ort

    calls: dict[int, Callable[[], object]] = {}
    while True:
        if isinstance(request := pipe.recv(), int):
            with pinned(request):
                pipe.send(turn(calls[request]))
            continue
        path, x, threads = request
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        calls[threads] = call = partial(session.run_with_iobinding, binding)
        call()
        pipe.send(binding.copy_outputs_to_cpu()[0])


def turn(call: Callable[[], object]) -> list[float]:
    """Seconds of some calls after an untimed one."""
    found = []
    for _ in range(FEWEST + 1):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found[1:]


def operands(problem: Workload) -> tuple[np.ndarray, np.ndarray]:
    """The first operand and the weights: of a convolution its input and filters, of a product A and B."""
    random, w = np.random.default_rng(0), problem
    if isinstance(w, Gemm):
        shapes: tuple[tuple[int, ...], ...] = ((w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n))
    else:
        shapes = (w.batch, w.channels, w.height, w.width), (w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w)
    first, weights = (random.uniform(-1, 1, shape).astype(np.float32) for shape in shapes)
    return first, weights


def check(problem: Conv, result: np.ndarray, other: np.ndarray) -> None:
    """Two libraries agree: no difference is above 1e-4 of the results' root mean square."""
    if not np.abs(result - other).max() <= 1e-4 * np.sqrt(np.mean(np.square(other, dtype=np.float64))):
        raise SystemExit(f"{problem.text}: the result differs from ONNX Runtime's")


def take(turns: dict[Key, Callable[[], list[float]]], seconds: float) -> dict[Key, list[float]]:
    """Samples of each plan and thread count, interleaved until each has had so many seconds. A turn begins when other libraries' threads
    sleep."""
    found: dict[Key, list[float]] = {key: [] for key in turns}
    end = time.perf_counter() + (seconds + PAUSE) * len(turns)
    while not all(found.values()) or time.perf_counter() < end:
        for key, take_some in turns.items():
            time.sleep(PAUSE)
            with pinned(key[0]):
                found[key] += take_some()
    return found


def plans_of(problem: Workload, on: Any, threads: int, kinds: int) -> list[Any]:
    """The plan, and the best of the next kinds."""
    best = planner.plan(problem, on, threads=threads)
    names = [msgspec.structs.replace(best, algorithm=one.algorithm, schedule=one.schedule).name for one in best.considered]
    others = [name for name in dict.fromkeys(names) if name != best.name][:kinds]
    return [best, *(planner.plan(problem, on, name=name, threads=threads) for name in others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--kinds", type=int, default=0)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--set", default="threads")
    given = parser.parse_args()
    theirs = OnnxRuntime() if given.models else None
    if theirs:
        given.models.mkdir(exist_ok=True)
    on = host.detect()
    file = given.out.with_suffix(".toml")
    file.write_text(to_toml(msgspec.structs.replace(on, name=file.stem)), encoding="utf-8")
    with given.out.open("w", encoding="utf-8") as out:
        about = {"kind": "header", "machine_file": file.name, "device": on.description, "columns": "least and median of samples, seconds"}
        print(json.dumps(about), file=out)
        for layer in distinct([layer for text in given.problems for layer in resolve(text)]):
            rows = measured(layer.workload, on, given, theirs)
            for row in rows:
                print(json.dumps(row), file=out, flush=True)
            first = {row["threads"]: row["least_seconds"] for row in reversed(rows)}
            times = "  ".join(f"{threads}: {seconds * 1e3:.3f} ms" for threads, seconds in sorted(first.items()))
            print(f"{times}  {rows[0]['problem']}  {rows[0]['plan'][:60]}", flush=True)


def measured(problem: Workload, on: Any, given: argparse.Namespace, theirs: OnnxRuntime | None) -> list[dict[str, Any]]:
    """A line for each plan and thread count, the planned one of each count first."""
    x, w = operands(problem)
    bits: dict[str, bytes] = {}
    turns: dict[Key, Callable[[], list[float]]] = {}
    plans = {threads: plans_of(problem, on, threads, given.kinds) for threads in given.threads}
    for threads, some in plans.items():
        for plan in some:
            ready = cpu_launch.Prepared(problem, w, plan.schedule, threads=threads)
            result = ready(x)
            if bits.setdefault(plan.name, result.tobytes()) != result.tobytes():
                raise SystemExit(f"{plan.name} gives other bits with {threads} threads")
            turns[threads, plan.name] = partial(turn, partial(ready, x, result))
        if theirs and isinstance(problem, Conv):
            check(problem, result, theirs.first(model_file(given.models, problem, w), x, threads))
            turns[threads, PEER] = partial(theirs.turn, threads)
    found = take(turns, given.seconds)
    return [
        {"set": given.set, "problem": problem.text, "plan": plan.name, "threads": threads, "predicted_seconds": plan.seconds}
        | _told(found[threads, plan.name])
        | {f"{PEER}_{name}": value for name, value in _told(found.get((threads, PEER), [])).items()}
        for threads, some in plans.items()
        for plan in some
    ]


def _told(samples: list[float]) -> dict[str, float]:
    return {"measured_seconds": float(np.median(samples)), "least_seconds": min(samples), "samples": len(samples)} if samples else {}


if __name__ == "__main__":
    main()
