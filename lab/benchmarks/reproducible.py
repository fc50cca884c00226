# SPDX-License-Identifier: Apache-2.0
"""Whether networks of accuracy reproducible have the same bits for every batch, number of threads, place of the input and width of
vectors, and what that costs: `python lab/benchmarks/reproducible.py [--to FILE] [--few | --price] MODEL.onnx ...`, whose batch the file
leaves open. `--few`: batches of 1, 2 and 7 on one and two threads, for models that plain C computes slowly. `--price`: only what it costs,
of one image on one thread. FILE gets a line of JSON for each model.

Each width is a process of its own (`PYSIM_MAX_TARGET`). The price is the least time over that of accuracy strict, of calls that take turns.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import pysim
from pysim.network.fingerprint import digest, random_inputs

TARGETS = ("portable", "avx2", "avx512")
ALL, FEW = ((1, 2, 7, 16, 64), (1, 2, 5, 16)), ((1, 2, 7), (1, 2))  # batches, threads
SEED, SECONDS, LEAST_ROUNDS = 7, 2.0, 5


def digests(path: str, few: bool) -> dict[str, int]:
    """The digests of all results, by image, as text, with how many there are of each."""
    found: dict[str, int] = {}
    batches, threads_of = FEW if few else ALL
    for batch in batches:
        for threads in threads_of:
            model = pysim.load(f"{path}:mb{batch}", threads=threads, accuracy="reproducible", seed=SEED)
            ((name, x),) = random_inputs(model.inputs).items()
            at_odd = np.zeros(x.size + 16, x.dtype)[3 : 3 + x.size].reshape(x.shape)
            every_second = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
            at_odd[...], every_second[...] = x, x
            for given in (x, at_odd, every_second):
                for image, y in enumerate(model(**{name: given})):
                    key = f"{image}: {digest(y)}"
                    found[key] = found.get(key, 0) + 1
    return found


def price(path: str) -> dict[str, Any]:
    """The least time of one call over that of strict, measured and predicted."""
    models = [pysim.load(f"{path}:mb1", accuracy=accuracy, seed=SEED) for accuracy in ("reproducible", "strict")]
    x = random_inputs(models[0].inputs)
    least, rounds = [float("inf")] * 2, 0
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until or rounds < LEAST_ROUNDS:
        for at, model in enumerate(models):
            start = time.perf_counter()
            model(**x)
            least[at] = min(least[at], time.perf_counter() - start)
        rounds += 1
    predicted = [sum(layer.predicted_seconds for layer in model.plan.layers) for model in models]
    return {"ratio": round(least[0] / least[1], 4), "predicted": round(predicted[0] / predicted[1], 4), "rounds": rounds}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("models", nargs="+")
    options.add_argument("--digests", action="store_true", help="of one model with this process's vectors, as JSON")
    options.add_argument("--few", action="store_true")
    options.add_argument("--price", action="store_true")
    options.add_argument("--to", type=Path)
    given = options.parse_args()
    if given.digests:
        print(json.dumps(digests(given.models[0], given.few)))
        return
    for path in given.models:
        line = {"network": Path(path).stem, **({} if given.price else bits(path, given.few)), **price(path)}
        print(json.dumps(line), flush=True)
        if given.to:
            with given.to.open("a") as file:
                print(json.dumps(line), file=file)


def bits(path: str, few: bool) -> dict[str, Any]:
    """How many results of images there are on all targets, and images whose results differ."""
    all_found: list[dict[str, int]] = []
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as cache:
            told = os.environ | {"PYSIM_MAX_TARGET": target, "XDG_CACHE_HOME": cache}
            command = [sys.executable, __file__, "--digests", path, *["--few"] * few]
            done = subprocess.run(command, env=told, text=True, capture_output=True, check=True)
            all_found.append(json.loads(done.stdout))
    images, distinct = max((FEW if few else ALL)[0]), {key for one in all_found for key in one}
    results = sum(sum(one.values()) for one in all_found)
    return {"few": few, "results": results, "images": images, "differ": len(distinct) - images}


if __name__ == "__main__":
    main()
