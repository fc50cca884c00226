# SPDX-License-Identifier: Apache-2.0
"""FP32 products beside oneDNN's sgemm and OpenBLAS on one thread, and where our time goes.

    python lab/benchmarks/products.py [SET|MxNxK[:nt]...] [--milliseconds MS] [--prepared]

Candidates are timed interleaved. A sample is the CPU time of a batch of calls of at least 50 us, and the lower deciles of the samples are
compared: on a shared computer most samples are disturbed, and now and then Linux charges a process too little time, down to 0.7 of what it
used. All calls are bound to their arrays beforehand. Columns: our microseconds; those of a Python call that checks its arrays; the share of
packing; predicted over measured time; each peer's time over ours (above 1: we are faster); the plan. With --prepared, B is prepared
(`pysim.prepare`) and the peer is ONNX Runtime, which packs it, too.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import pysim
from pysim.errors import MissingError
from pysim.peers import onednn, onnxruntime, openblas
from pysim.peers.peer import Operands
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.runtime import cpu, cpu_launch

SAMPLE = 50e-6  # seconds
RESNET50 = (
    "64x3136x64 64x3136x576 256x3136x64 64x3136x256 128x784x1152 512x784x128 128x784x512 256x196x2304 1024x196x256 256x196x1024 "
    "512x49x4608 2048x49x512 512x49x2048 64x12544x147"
)
BERT = "128x768x768 128x3072x768 128x768x3072 128x128x64:nt 128x64x128"
VIT = "197x768x768 197x3072x768 197x768x3072 197x197x64:nt 197x64x197 196x768x768 197x2304x768"
ODD = (
    "2048x64x2048:tn 2048x48x2048 64x64x20000 256x32x20000 32x256x20000:nt 1000x17x3000 17x1000x3000:tt 500x60x777:tt 3000x3000x16 "
    "16x3000x3000:tn"
)


def ragged(seed: int, count: int = 30) -> Iterator[str]:
    """Products whose sizes are spread evenly over the octaves from 11 to 2048, of every layout."""
    of = random.Random(seed)
    for _ in range(count):
        m, n, k = (int(2 ** of.uniform(3.5, 11)) for _ in range(3))
        yield f"{m}x{n}x{k}:{of.choice(['nn', 'nt', 'tn', 'tt'])}"


SETS = {
    "squares": [f"{n}x{n}x{n}" for n in (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)],
    "resnet50": RESNET50.split(),
    "bert": BERT.split(),
    "vit": VIT.split(),
    "ragged": list(ragged(5)),
    "fresh": list(ragged(7)),
    "few": [f"{m}x4096x4096{layout}" for layout in ("", ":nt") for m in (1, 2, 4, 8)],
    "odd": ODD.split(),
}


def lower_deciles(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The lower decile of each call's samples, interleaved; every other round runs backwards, as caches hold what ran before."""
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        call()
        start = time.process_time()
        call()
        repeats[name] = max(1, math.ceil(SAMPLE / max(1e-6, time.process_time() - start)))
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 4 or time.perf_counter() < end:
        for name in list(calls)[:: 1 - rounds % 2 * 2]:
            call, start = calls[name], time.process_time()
            for _ in range(repeats[name]):
                call()
            samples[name].append((time.process_time() - start) / repeats[name])
        rounds += 1
    return {name: float(np.quantile(of, 0.1)) for name, of in samples.items()}


def operands(w: Gemm) -> Operands:
    of = np.random.default_rng(0)
    shapes = ((w.k, w.m) if w.trans_a else (w.m, w.k), (w.n, w.k) if w.trans_b else (w.k, w.n), (w.m, w.n))
    arrays = [cpu.aligned(shape, np.float32) for shape in shapes]
    for array in arrays:
        array[...] = of.standard_normal(array.shape, dtype=np.float32)
    return Operands(*arrays)


def peers(w: Gemm, ours: Operands, prepared: bool) -> dict[str, Callable[[], Any]]:
    found = {}
    for name, library in {"onnxruntime": onnxruntime}.items() if prepared else {"onednn": onednn, "openblas": openblas}.items():
        try:
            found[name] = library.make(w, ours).call
        except MissingError as error:
            print(f"# {name}: {error}")
    return found


def measure(text: str, seconds: float, prepared: bool) -> dict[str, float]:
    """The ratios of the peers; prints a line."""
    w = parse(f"gemm:{text}")
    assert isinstance(w, Gemm)
    ours, plan = operands(w), pysim.plan(w, prepared=prepared)
    a, b, c = ours[:3]
    product: Any
    arrays: tuple[Any, ...]
    if prepared:
        product = cpu_launch.Prepared(w, b, plan.schedule)
        arrays = (a, c)
    else:
        product = cpu_launch.Launch(w, plan.schedule)
        arrays = (a, b, c)
    calls = {"bound": product.step(*arrays, cpu.aligned(product.workspace_bytes, np.uint8)).bound(), "call": partial(product.run, *arrays)}
    profiles = [product.profile(*arrays) for _ in range(5)]
    packing = min(p["pack_seconds"] / (p["pack_seconds"] + p["kernel_seconds"]) for p in profiles)
    found = lower_deciles(calls | peers(w, ours, prepared), seconds)
    own, call, s = found.pop("bound"), found.pop("call"), plan.schedule
    ratios = {name: other / own for name, other in found.items()}
    others = " ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    row = f"{plan.algorithm} {s.kernel.split('__')[0]} {s.stationary[:2]} {s.pack} c{s.channels} k2 {s.k2} k3 {s.k3}"
    shares = f"packing {packing:.2f} predicted {plan.cost.seconds / own:.2f}"
    print(
        f"{text:18} {own * 1e6:10.1f} us, call {call * 1e6:10.1f} us {2e-9 * w.m * w.n * w.k / own:4.0f} GF {shares} | {others} | {row}",
        flush=True,
    )
    return ratios


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=list(SETS))
    parser.add_argument("--milliseconds", type=float, default=300)
    parser.add_argument("--prepared", action="store_true")
    given = parser.parse_args()
    for name in given.problems:
        ratios = [measure(text, given.milliseconds / 1e3, given.prepared) for text in SETS.get(name, [name])]
        for peer in ratios[0] if len(ratios) > 1 else ():
            of = [one[peer] for one in ratios]
            print(
                f"# {name}: {peer} {mean(of):.3f} in the mean, worst {min(of):.2f}, {sum(one >= 1 for one in of)} of {len(of)} at least 1"
            )


if __name__ == "__main__":
    main()
