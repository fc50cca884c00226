# SPDX-License-Identifier: Apache-2.0
"""Random layers of accuracy reproducible: whether each image or row has the same bits whatever the batch, the threads, the operands' places
and the vectors: `python lab/benchmarks/reproducible_layers.py [--layers 2000] [--seed 1] [--to FILE] [--against FILE]`.

Each width of vectors is a process of its own (PYSIM_MAX_TARGET), which prints a digest of each layer's images. FILE keeps those, by which
another computer compares its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import pysim
from pysim.network.fingerprint import digest

TARGETS, THREADS = ("portable", "avx2", "avx512"), (1, 2, 5, 16)
BATCHES, ROWS = (1, 2, 3, 7, 16), (1, 2, 5, 17, 64)
ACTIVATIONS = (None, "relu", "gelu", "silu", "tanh", "mish", ("clamp", -0.5, 0.75), ("elu", 1.0, 1.0), ("leaky_relu", 0.1, 1.0))


def layer_of(number: int) -> tuple[str, tuple[tuple[int, ...], ...], dict[str, Any]]:
    """The function, the shapes of its operands with the largest batch, its options."""
    rng = np.random.default_rng(number)

    def one(*of: Any) -> Any:
        return of[int(rng.integers(len(of)))]

    if one(0, 1, 1) == 0:
        n, k, turned = one(1, 7, 16, 33, 40, 130), one(1, 3, 64, 100, 257, 1100, 2500), one(False, True)
        return "gemm", ((max(ROWS), k), (n, k) if turned else (k, n), (n,)), {"trans_b": turned}
    kernel, groups = one(1, 1, 2, 3, 3, 3, 5, 7), one(1, 1, 1, 1, 2, 4, 16, 33)
    channels = groups * one(1, 1, 2, 4) if groups > 1 else one(1, 3, 8, 16, 17, 32, 64, 130)
    filters = groups * one(1, 2, 5) if groups > 1 else one(1, 5, 16, 32, 33, 64)
    rank, turned = one(1, 2, 2, 2, 2, 2, 2, 3), one(False, False, False, True)
    sizes = [one(7, 12, 15, 20) * (1 if rank > 1 else 5), one(7, 9, 14, 16), 4][:rank][::-1]
    kernels = [one(1, 3), kernel, kernel][-rank:]
    options = {"stride": one(1, 1, 2, 3), "dilation": one(1, 1, 1, 2), "groups": groups}
    spans = [options["dilation"] * (one - 1) + 1 for one in kernels]
    if turned:
        options["padding"] = min(one(0, kernel // 2), (min(spans) - 1) // 2)
        weights = (channels, filters // groups, *kernels)
    else:
        options["padding"] = max(one(0, kernel // 2), *(-(-(span - size) // 2) for span, size in zip(spans, sizes, strict=True)))
        weights = (filters, channels // groups, *kernels)
    return f"conv{'_transpose' * turned}{rank}d", ((max(BATCHES), channels, *sizes), weights, (filters,)), options


def at(place: int, x: Any) -> Any:
    """A copy: dense, at an address that is no multiple of 16, in every second element, or of another order of axes."""
    if place == 1:
        to = np.zeros(x.size + 16, x.dtype)[3 : 3 + x.size].reshape(x.shape)
    elif place == 2:
        to = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
    else:
        to = np.zeros(x.shape if place == 0 else x.shape[::-1], x.dtype).transpose(None if place == 3 else range(x.ndim))
    to[...] = x
    return to


def digests(number: int, machine: str) -> dict[str, list[str]]:
    """Of each image the digests that occurred."""
    function, shapes, options = layer_of(number)
    rng = np.random.default_rng(number + 1)
    dtype = np.float64 if rng.integers(4) == 0 else np.float32
    activation = ACTIVATIONS[rng.integers(len(ACTIVATIONS)) if dtype == np.float32 else 1]
    x, w, bias = ((rng.random(shape) - 0.5).astype(dtype) for shape in shapes)
    found: dict[str, set[str]] = {}
    sizes = BATCHES if function != "gemm" else ROWS
    for batch in sorted({1, int(rng.choice(sizes)), int(rng.choice(sizes))}):
        given = [at(int(rng.integers(4)), one) for one in (x[:batch], w)]
        run, threads = getattr(pysim, function), int(rng.choice(THREADS))
        y = run(*given, bias=bias, activation=activation, threads=threads, accuracy="reproducible", machine=machine, **options)
        for image in range(batch):
            found.setdefault(str(image), set()).add(digest(y[image]))
    return {image: sorted(of) for image, of in found.items()}


def of_target(target: str, given: Any) -> dict[str, dict[str, list[str]]]:
    with tempfile.TemporaryDirectory() as cache:
        told = os.environ | {"PYSIM_MAX_TARGET": target, "XDG_CACHE_HOME": cache}
        command = [
            sys.executable,
            __file__,
            "--digests",
            "--layers",
            str(given.layers),
            "--seed",
            str(given.seed),
            "--first",
            str(given.first),
            "--machine",
            given.machine,
        ]
        done = subprocess.run(command, env=told, text=True, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--layers", type=int, default=2000)
    options.add_argument("--first", type=int, default=0, help="the layers before it are left out")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--machine", default="host", help="power10-e1050: its kernels under QEMU")
    options.add_argument("--targets", nargs="+", default=TARGETS)
    options.add_argument("--digests", action="store_true", help="of this process's vectors, as JSON")
    options.add_argument("--to", type=Path)
    options.add_argument("--against", type=Path)
    given = options.parse_args()
    numbers = range(given.seed * 1_000_000 + given.first, given.seed * 1_000_000 + given.layers)
    if given.digests:
        print(json.dumps({str(number): digests(number, given.machine) for number in numbers}))
        return 0
    known: dict[str, dict[str, list[str]]] = json.loads(given.against.read_text()) if given.against else {}
    differ = set[str]()
    for target in given.targets:
        found = of_target(target, given)
        for number, images in found.items():
            of = known.setdefault(number, images)
            if any(len(one) != 1 for one in images.values()) or any(of.get(image, one) != one for image, one in images.items()):
                differ.add(f"{target}: {layer_of(int(number))}")
        print(f"{target}: {len(found)} layers, {sum(map(len, found.values()))} images; {len(differ)} layers differ so far", flush=True)
    print(*sorted(differ)[:20], sep="\n")
    if given.to:
        given.to.write_text(json.dumps(known) + "\n")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
