# SPDX-License-Identifier: Apache-2.0
"""Whether networks of accuracy reproducible have the same bits for every batch, number of threads, place of the input and width of
vectors, and what that costs: `python lab/benchmarks/reproducible.py MODEL.onnx ...`, with a batch that the file leaves open.

Each width is a process of its own (`PYSIM_MAX_TARGET`). The price is the time over that of accuracy strict, of calls that take turns.
"""

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

BATCHES, THREADS, TARGETS = (1, 2, 7, 16), (1, 2), ("portable", "avx2", "avx512")
SEED, SECONDS = 7, 2.0


def digests(path: str) -> dict[str, int]:
    """The digests of all results, by image, as text, with how many there are of each."""
    found: dict[str, int] = {}
    for batch in BATCHES:
        for threads in THREADS:
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
    if sys.argv[1] == "--digests":
        print(json.dumps(digests(sys.argv[2])))
        return
    for path in sys.argv[1:]:
        all_found: list[dict[str, int]] = []
        for target in TARGETS:
            with tempfile.TemporaryDirectory() as cache:
                told = os.environ | {"PYSIM_MAX_TARGET": target, "XDG_CACHE_HOME": cache}
                done = subprocess.run([sys.executable, __file__, "--digests", path], env=told, text=True, capture_output=True, check=True)
                all_found.append(json.loads(done.stdout))
        results = sum(sum(one.values()) for one in all_found)
        distinct = {key for one in all_found for key in one}
        differ = len(distinct) - max(BATCHES)
        print(f"{Path(path).stem}: {results} results, {differ} of {max(BATCHES)} images differ; {price(path):.3f}x strict", flush=True)


if __name__ == "__main__":
    main()
