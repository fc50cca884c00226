#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy reproducible on a GPU: whether each image has the same bits in every batch, and what that costs.

    lab/benchmarks/cuda/reproducible.py plan FILE [--layers 300] [--rows 60] [--seed 1] [--set SET:f32:nchw ...]     anywhere
    lab/benchmarks/cuda/reproducible.py run FILE -o RESULTS [--seconds 200]                                          on the GPU
    lab/benchmarks/cuda/reproducible.py models NAME:f32 ... -o RESULTS    networks of torchvision and timm, by pysim.torch.optimize

`plan` writes one line for each case, `run` measures one after another while time is left. Cases are

    rows    a random layer; every row and number of parts that keeps a contract. Those of one contract must have equal bits.
    layer   a layer, random or of a network, and its reproducible plans: of each of BATCHES, without workspace above LIMIT bytes, and
            strict's plan. Images are compared with those of the largest batch, once more with the images in another order, and once
            more in a CUDA graph. Times are medians of CUDA events.

Epilogues are drawn with the layers: alpha, scale, bias, residual, activation.
"""

import argparse
import fcntl
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pysim import planner
from pysim.algorithms import reproducible
from pysim.check.reference import shapes
from pysim.errors import PlanError, PysimError
from pysim.planner.contracts import PARTS, resized
from pysim.planner.plan import request_of
from pysim.planner.table import Table
from pysim.problem.conv import Conv
from pysim.problem.text import Workload, parse, resolve
from pysim.record.schedule import GpuSchedule, from_name, name_of

BATCHES, ROWS = (1, 2, 7, 16, 64), (1, 3, 17, 64, 400)
LIMIT = 1 << 20
LIMITS = (None, LIMIT, 0)
TYPES = ("f32", "f32", "f16", "bf16", "tf32")
ACTIVATIONS = (None, "relu", "gelu", "silu", ("clamp", -0.5, 0.75))


# Plans


def random_layer(rng: np.random.Generator) -> tuple[str, str]:
    """A layer's text and layout."""

    def one(*of: Any) -> Any:
        return of[int(rng.integers(len(of)))]

    dtype, layout = one(*TYPES), one("nchw", "nhwc")
    if one(0, 0, 1):
        turned = one("nt", "nn", "tn")
        return f"gemm:1x{one(1, 16, 40, 130, 768, 1000)}x{one(32, 64, 100, 257, 768, 1100, 3072)}:{turned}:{dtype}", "nchw"
    kernel, groups = one(1, 1, 3, 3, 3, 5, 7), one(1, 1, 1, 1, 4, 32)
    each = one(1, 2, 4) if groups > 1 else one(3, 8, 16, 17, 64, 130, 256, 512)
    of_group = one(1, 2, 5) if groups > 1 else one(5, 16, 33, 64, 96, 256)
    sizes = f"ih{one(7, 9, 14, 28)}iw{one(7, 12, 14, 28)}kh{kernel}sh{one(1, 1, 2)}ph{kernel // 2}dh{one(0, 0, 0, 1)}"
    return f"conv:g{groups}ic{groups * each}oc{groups * of_group}{sizes}:{dtype}", layout


def epilogue_of(problem: Workload, rng: np.random.Generator) -> dict[str, Any]:
    narrow = problem.dtype == "s8"
    return {
        "bias": bool(rng.integers(2)), "scale": not rng.integers(4), "residual": bool(rng.integers(2)),
        "activation": ACTIVATIONS[int(rng.integers(2 if narrow else len(ACTIVATIONS)))],
        "alpha": (1.0, 0.75)[not narrow and not rng.integers(4)],
    }  # fmt: skip


def keeping(problem: Workload, machine: str, layout: str) -> dict[str, list[str]]:
    """Of each contract, a plan of every row, variant and number of parts."""
    request = request_of(problem, planner.plan(problem, machine, layout=layout).on, layout=layout)
    request = msgspec.structs.replace(request, parts=PARTS)
    found = dict[str, list[str]]()
    for algorithm, costs in Table.of(request, exhaustive=True).costs:
        for row in np.unique(costs.alike, return_index=True)[1].tolist():
            schedule = costs.schedule(row)
            if contract := reproducible.contract(algorithm, problem, schedule, request.layout):
                found.setdefault(str(contract), []).append(name_of(algorithm.NAME, schedule))
    return {contract: names for contract, names in found.items() if len(names) > 1}


def layer_case(text: str, machine: str, layout: str) -> dict[str, Any]:
    """The plans of a layer for each batch."""
    cases, layer = [], parse(text)
    for size in BATCHES if isinstance(layer, Conv) else ROWS:
        problem = resized(layer, size)
        for limit in (None, LIMIT):
            try:
                plan = planner.plan(problem, machine, layout=layout, accuracy="reproducible", memory_limit=limit)
            except PlanError:
                if limit is None:
                    raise
                continue
            strict = planner.plan(problem, machine, layout=layout, accuracy="strict")
            cases.append({"size": size, "limit": limit, "plan": plan.name, "strict": strict.name, "contract": str(plan.contract),
                          "predicted": plan.cost.seconds / strict.cost.seconds})  # fmt: skip
    return {"kind": "layer", "layer": text, "layout": layout, "plans": cases}


def write(path: Path, machine: str, rows: int, layers: int, seed: int, sets: Iterable[str]) -> None:
    with path.open("w") as file:
        for number in range(rows + layers):
            rng = np.random.default_rng([seed, number])
            text, layout = random_layer(rng)
            try:
                if number < rows:
                    problem = resized(parse(text), int(rng.choice([2, 5] if text.startswith("conv") else [3, 70, 400])))
                    case = {"kind": "rows", "layer": problem.text, "layout": layout, "contracts": keeping(problem, machine, layout)}
                else:
                    case = layer_case(text, machine, layout)
            except PlanError as error:
                print(f"{text} {layout}: {error}")
                continue
            file.write(json.dumps(case | {"epilogue": epilogue_of(parse(text), rng)}) + "\n")
        for word in sets:
            name, dtype, layout = word.rsplit(":", 2)
            texts = [msgspec.structs.replace(resized(one.workload, 1), dtype=dtype).text for one in resolve([name])]
            for number, text in enumerate(dict.fromkeys(texts)):
                case = layer_case(text, machine, layout) | {"set": word, "times": texts.count(text)}
                file.write(json.dumps(case | {"epilogue": epilogue_of(parse(text), np.random.default_rng(number))}) + "\n")


# Runs


class Device:
    """Operands of a layer on the device, drawn there, and its launches. Images and rows of a smaller size are the first of a larger one."""

    def __init__(self, problem: Workload, layout: str, epilogue: dict[str, Any]) -> None:
        import torch

        from pysim.runtime import cuda

        self.torch, self.cuda, self.problem, self.layout, self.told = torch, cuda, problem, layout, epilogue
        types = {"f32": torch.float32, "tf32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
        torch.manual_seed(1)
        of = shapes(problem)
        self.x, self.w, self.residual = (
            torch.empty(int(np.prod(one)), device="cuda").uniform_(-1, 1).to(types[problem.dtype]) for one in (of[0], of[1], of[2])
        )
        self.filters = problem.filters if isinstance(problem, Conv) else problem.n
        self.bias = torch.empty(self.filters, device="cuda").uniform_(-1, 1).to(types[problem.dtype])
        self.scale = torch.empty(self.filters, device="cuda").uniform_(0.5, 2)
        self.size = problem.batch if isinstance(problem, Conv) else problem.m

    def of(self, array: Any, size: int) -> Any:
        """The first `size` images or rows."""
        return array[: array.numel() // self.size * size]

    def bound(self, name: str, size: int, y: Any, x: Any = None) -> Any:
        """A plan's launch of the first images into y."""
        _, schedule = from_name(name)
        assert isinstance(schedule, GpuSchedule)
        launch = self.cuda.Launch(resized(self.problem, size), schedule, layout=self.layout)
        bias, scale = self.bias.data_ptr() * self.told["bias"], self.scale.data_ptr() * self.told.get("scale", False)
        factors = self.told.get("alpha", 1.0), float(self.told["residual"])
        told = self.cuda.epilogue_struct(*factors, bias, activation(self.told["activation"]), scale)
        pointers = ((self.x if x is None else x).data_ptr(), self.w.data_ptr(), y.data_ptr())

        def make(count: int) -> tuple[Any, int]:
            memory = self.torch.empty(count, dtype=self.torch.uint8, device="cuda")
            return memory, memory.data_ptr()

        return launch.on(pointers, epilogue=told, stream=self.torch.cuda.current_stream().cuda_stream, make=make)

    def result(self, name: str, size: int, x: Any = None, residual: Any = None, graph: bool = False) -> Any:
        y = self.of(self.residual if residual is None else residual, size).clone()
        if not graph:
            self.bound(name, size, y, x).run()
            return y
        start, captured = y.clone(), self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(captured):
            y.copy_(start)
            kept = self.bound(name, size, y, x)
            kept.run()
        captured.replay()
        captured.replay()
        self.torch.cuda.synchronize()
        return y

    def turned(self, array: Any) -> Any:
        """The images in another order."""
        return array.view(self.size, -1).flip(0).contiguous().view(-1)

    def seconds(self, names: list[str], size: int) -> list[float]:
        """Median seconds of launches that take turns."""
        y = self.of(self.residual, size).clone()
        all_of = [self.bound(name, size, y) for name in names]
        times = [np.concatenate([one.time(5, 1) for _ in range(3)]) for one in all_of]
        return [float(np.median(some)) for some in times]


def activation(told: Any) -> Any:
    return tuple(told) if isinstance(told, list) else told


def differing(a: Any, b: Any, count: int) -> int:
    """Images with another bit. Neither has a NaN that is not the other's."""
    import torch

    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return int((a.view(bits) != b.view(bits)).view(count, -1).any(1).sum())


def run_rows(case: dict[str, Any]) -> dict[str, Any]:
    device, results, differ = Device(parse(case["layer"]), case["layout"], case["epilogue"]), 0, {}
    for contract, names in case["contracts"].items():
        first = device.result(names[0], device.size)
        others = [name for name in names[1:] if differing(device.result(name, device.size), first, 1)]
        results += len(names)
        if others:
            differ[contract] = [names[0], *others]
    return {"results": results, "contracts": len(case["contracts"]), "differ": differ}


def run_layer(case: dict[str, Any]) -> dict[str, Any]:
    plans, largest = case["plans"], max(one["size"] for one in case["plans"])
    device = Device(resized(parse(case["layer"]), largest), case["layout"], case["epilogue"])
    by_rows = isinstance(device.problem, Conv) or not device.problem.trans_a
    whole = next(one["plan"] for one in plans if one["size"] == largest and one["limit"] is None)
    expected, images, differ, prices = device.result(whole, largest), 0, 0, []
    for one in plans if by_rows else []:
        size, want = one["size"], device.of(expected, one["size"])
        for graph in (False, True):
            differ += differing(device.result(one["plan"], size, graph=graph), want, size)
            images += size
    if by_rows:
        got = device.result(whole, largest, device.turned(device.x), device.turned(device.residual))
        differ, images = differ + differing(device.turned(got), expected, largest), images + largest
    for one in plans:
        if one["limit"] is None:
            mine, strict = device.seconds([one["plan"], one["strict"]], one["size"])
            prices.append([one["size"], round(mine * 1e6, 2), round(strict * 1e6, 2), round(one["predicted"], 3)])
    return {"images": images, "differing": differ, "contracts": len({one["contract"] for one in plans}), "prices": prices}


def run(path: Path, to: Path, seconds: float) -> None:
    end, totals = time.monotonic() + seconds, {"rows": [0, 0], "layer": [0, 0]}
    with to.open("w") as file:
        for line in path.read_text().splitlines():
            case = json.loads(line)
            if time.monotonic() > end:
                break
            found = run_rows(case) if case["kind"] == "rows" else run_layer(case)
            kept = {name: case[name] for name in ("kind", "layer", "layout", "epilogue", "set", "times") if name in case}
            file.write(json.dumps(kept | found) + "\n")
            file.flush()
            of = totals[case["kind"]]
            of[0] += found["results"] if case["kind"] == "rows" else found["images"]
            of[1] += len(found["differ"]) if case["kind"] == "rows" else found["differing"]
    print(f"results of rows {totals['rows'][0]}, contracts that differ {totals['rows'][1]}")
    print(f"images of layers {totals['layer'][0]}, differing {totals['layer'][1]}")


class Images:
    """A network of torchvision or timm with random weights, as it is under each accuracy, and the result of the largest batch."""

    def __init__(self, word: str, seed: int) -> None:
        import torch

        self.name, self.dtype = word.split(":")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.dtype == "tf32"
        torch.manual_seed(seed)
        self.model = network(self.name).cuda().train()
        size = getattr(self.model, "default_cfg", {}).get("input_size", (3, 299 if self.name == "inception_v3" else 224))[-1]
        self.x = torch.randn(max(BATCHES), 3, size, size, device="cuda")
        self.model(self.x[:8])
        self.model = self.model.eval()
        if self.dtype == "f16":
            self.model, self.x = self.model.half(), self.x.half()
        self.unlimited = 0  # plans whose contract needs more workspace than a limit allows
        self.strict, strict = self.optimized("strict")
        every = {limit: self.optimized("reproducible", limit) for limit in LIMITS}
        self.by = {limit: own for limit, (own, _) in every.items()}
        self.predicted = [round(float(one), 3) for one in every[None][1] / strict]
        self.want = self.by[None](self.x).clone()

    def optimized(self, accuracy: Any, limit: int | None = None) -> tuple[Any, Any]:
        """The network, planned for all batches with at most `limit` bytes of workspace where the layer's contract allows it, and the
        predicted seconds of its layers for each batch."""
        import pysim.torch

        plan = planner.plan

        def limited(*args: Any, **terms: Any) -> Any:
            try:
                return plan(*args, **terms, memory_limit=limit)
            except PlanError:
                if limit is None:
                    raise
                self.unlimited += 1
                return plan(*args, **terms)

        own = pysim.torch.optimize(self.model, accuracy, cuda_graph="caller", compiler=False)
        planner.plan, totals = limited, [0.0]
        try:
            for size in BATCHES:
                own(self.first(size))
                totals.append(sum(one.predicted_seconds or 0 for one in pysim.torch.report(own)))
        finally:
            planner.plan = plan
        return own, np.diff(totals)

    def first(self, size: int) -> Any:
        return self.x[:size].contiguous()

    def compared(self) -> dict[str, Any]:
        """Images in each of BATCHES, with each of LIMITS, with and without a CUDA graph, and in reverse order."""
        import torch
        from models import captured

        images, differ = 0, 0
        for size in BATCHES:
            part = self.first(size)
            for own in self.by.values():
                for y in (own(part), captured(lambda own=own, part=part: own(part))()):
                    torch.cuda.synchronize()
                    images, differ = images + size, differ + differing(y.contiguous(), self.want[:size].contiguous(), size)
        turned = self.by[None](self.x.flip(0)).flip(0).contiguous()
        images, differ = images + max(BATCHES), differ + differing(turned, self.want, max(BATCHES))
        return {"model": self.name, "dtype": self.dtype, "images": images, "differing": differ, "unlimited": self.unlimited}

    def prices(self) -> dict[str, Any]:
        """Milliseconds in CUDA graphs of reproducible and strict, by batch, and the predicted ratio of their layers."""
        from models import captured, timed

        found = {}
        for at, size in enumerate(BATCHES):
            part = self.first(size)
            calls = {
                name: captured(lambda own=own, part=part: own(part)) for name, own in (("own", self.by[None]), ("strict", self.strict))
            }
            ms = timed(calls, 15)
            found[size] = [round(ms["own"], 4), round(ms["strict"], 4), self.predicted[at]]
        return {"model": self.name, "dtype": self.dtype, "prices": found}


def network(name: str) -> Any:
    import torchvision

    if not hasattr(torchvision.models, name):
        import timm

        return timm.create_model(name)
    options = {"init_weights": True, "aux_logits": False} if name in ("googlenet", "inception_v3") else {}
    return getattr(torchvision.models, name)(**options)


def run_models(words: list[str], to: Path, lock: Path, seed: int) -> None:
    """One network after another. Processes of one lock prepare and compare together, and measure times in turn."""
    import torch

    torch.set_grad_enabled(False)
    with to.open("w") as file, lock.open("w") as turn:
        for word in words:
            fcntl.flock(turn, fcntl.LOCK_SH)
            try:
                one = Images(word, seed)
                say(one.compared(), file)
                fcntl.flock(turn, fcntl.LOCK_UN)
                fcntl.flock(turn, fcntl.LOCK_EX)
                say(one.prices(), file)
            except (PysimError, RuntimeError) as error:
                say({"model": word, "refused": str(error)}, file)


def say(found: dict[str, Any], file: Any) -> None:
    for to in (None, file):
        print(json.dumps(found), file=to, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    plans, runs, models = (commands.add_parser(name) for name in ("plan", "run", "models"))
    models.add_argument("words", nargs="+")
    for one in (plans, runs):
        one.add_argument("file", type=Path)
    plans.add_argument("-m", "--machine", default="h200")
    plans.add_argument("--rows", type=int, default=60)
    plans.add_argument("--layers", type=int, default=300)
    plans.add_argument("--set", nargs="*", default=[])
    for one in (plans, models):
        one.add_argument("--seed", type=int, default=1)
    for one in (runs, models):
        one.add_argument("-o", "--to", type=Path, required=True)
    runs.add_argument("--seconds", type=float, default=200.0)
    models.add_argument("--lock", type=Path, help="a file of all processes that take turns; default: beside the results")
    told = parser.parse_args()
    if told.command == "plan":
        write(told.file, told.machine, told.rows, told.layers, told.seed, told.set)
    elif told.command == "models":
        run_models(told.words, told.to, told.lock or told.to.with_suffix(".lock"), told.seed)
    else:
        run(told.file, told.to, told.seconds)


if __name__ == "__main__":
    main()
