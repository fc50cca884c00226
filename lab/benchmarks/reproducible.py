# SPDX-License-Identifier: Apache-2.0
"""Whether networks of accuracy reproducible have the same bits for every batch, number of threads, place of the input and width of
vectors, and what that costs: `python lab/benchmarks/reproducible.py [--to FILE] [--few] MODEL.onnx ...`, whose batch the file leaves open.
`--few`: batches of 1, 2 and 7 on one and two threads, for models that plain C computes slowly. FILE gets a line of JSON for each model.

Each width is a process of its own (`PYSIM_MAX_TARGET`). The price is the time over that of accuracy strict, of calls that take turns.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import pysim
from pysim.network.fingerprint import digest, random_inputs

TARGETS = ("portable", "avx2", "avx512")
ALL, FEW = ((1, 2, 7, 16, 64), (1, 2, 5, 16)), ((1, 2, 7), (1, 2))  # batches, threads
SEED, SECONDS = 7, 2.0


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


def price(path: str) -> float:
    """The time of one call over that of strict."""
    models = [pysim.load(f"{path}:mb1", accuracy=accuracy, seed=SEED) for accuracy in ("reproducible", "strict")]
    x = random_inputs(models[0].inputs)
    ratios = []
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        spent = []
        for model in models:
            start = time.perf_counter()
            model(**x)
            spent.append(time.perf_counter() - start)
        ratios.append(spent[0] / spent[1])
    return median(ratios)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("models", nargs="+")
    options.add_argument("--digests", action="store_true", help="of one model with this process's vectors, as JSON")
    options.add_argument("--few", action="store_true")
    options.add_argument("--to", type=Path)
    given = options.parse_args()
    if given.digests:
        print(json.dumps(digests(given.models[0], given.few)))
        return
    images, few = max((FEW if given.few else ALL)[0]), ["--few"] * given.few
    for path in given.models:
        all_found: list[dict[str, int]] = []
        for target in TARGETS:
            with tempfile.TemporaryDirectory() as cache:
                told = os.environ | {"PYSIM_MAX_TARGET": target, "XDG_CACHE_HOME": cache}
                command = [sys.executable, __file__, "--digests", path, *few]
                done = subprocess.run(command, env=told, text=True, capture_output=True, check=True)
                all_found.append(json.loads(done.stdout))
        results = sum(sum(one.values()) for one in all_found)
        distinct = {key for one in all_found for key in one}
        differ, ratio, name = len(distinct) - images, price(path), Path(path).stem
        print(f"{name}: {results} results, {differ} of {images} images differ; {ratio:.3f}x strict", flush=True)
        if given.to:
            line = {"network": name, "few": given.few, "results": results, "images": images, "differ": differ, "ratio": round(ratio, 4)}
            with given.to.open("a") as file:
                print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
