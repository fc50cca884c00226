# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's compiler saves between pysim's layers on a GPU, expected beside measured: python lab/benchmarks/cuda/compiler_choice.py
-o FILE [--seconds 200] [MODEL:BATCH:PRECISION ...]

Networks and precisions as in models.py. Each runs by `optimize(compiler=True)` and `optimize(compiler=False)`, in CUDA graphs, interleaved:
`ms`, milliseconds. `expected`: the milliseconds that `pysim.torch.capture.compiled` expects the compiler to save, by which the default
chooses. One JSON line a network, under a header.
"""

import argparse
import gc
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import PRECISIONS, append, captured, network, sizes, timed, under

import pysim.torch
from pysim.torch.capture import compiled

NETWORKS = (
    "decoder:8:f32 se_resnet:32:f32 efficientnet_b0:32:f32 unet:8:f32 convnext_tiny:32:f32 super_resolution:8:f32 mobilenet_v2:32:f32 "
    "densenet121:32:f32 densenet121:32:tf32 efficientnet_b0:32:tf32 vit:8:tf32 resnext50_32x4d:32:tf32"
)
ROUNDS = 15
FIRST_GUESS = 20.0  # seconds that a network may take, before one was measured


@torch.no_grad()
def measure(name: str, batch: int, size: int, precision: str) -> dict[str, Any]:
    with under("f32"):
        model, x = network(name, batch, size)
    model, x = model.to(PRECISIONS[precision]), x.to(PRECISIONS[precision])
    expected, laid = list[float](), compiled.laid

    def noted(*how: Any) -> compiled.Laid:
        graph = laid(*how)
        expected.append(round(1e3 * graph.saving, 3))
        return graph

    calls = {}
    compiled.laid = noted
    try:
        with under(precision):
            for label, asked in (("compiled", True), ("alone", False)):
                ours = pysim.torch.optimize(model, cuda_graph="caller", compiler=asked)
                ours(x)
                calls[label] = captured(partial(ours, x))
            medians = timed(calls, ROUNDS)
    finally:
        compiled.laid = laid
    row = {"model": name, "batch": batch, "precision": precision}
    return row | {"ms": {label: round(value, 3) for label, value in medians.items()}, "expected": expected}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS.split(), metavar="MODEL:BATCH:PRECISION")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=200.0, help="before which the run ends")
    given = parser.parse_args()
    end, slowest = time.time() + given.seconds, FIRST_GUESS
    given.output.write_text(json.dumps({"kind": "header", "device": torch.cuda.get_device_name(), "torch": torch.__version__}) + "\n")
    for text in given.networks:
        start, (shape, _, precision) = time.time(), text.rpartition(":")
        if start + slowest > end:
            print(f"{text}: no time is left")
            continue
        row = measure(*sizes(shape), precision)
        append(given.output, row)
        saved = row["ms"]["alone"] - row["ms"]["compiled"]
        print(f"{text:<28} {row['ms']}  saved {saved:+.3f} ms, expected {row['expected']}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch._dynamo.reset()
        slowest = max(slowest, time.time() - start)


if __name__ == "__main__":
    main()
