# SPDX-License-Identifier: Apache-2.0
"""Compares convolutions with a prologue with PyTorch's separate operators and convolution, on a GPU, FP32, in one run.

    python lab/benchmarks/cuda/prologues.py -o FILE [--batch 32 1]

Problems: pointwise convolutions of DenseNet-121 after a norm and a ReLU, and EfficientNet-B0's projections, whose input is multiplied by a
factor per image and channel. Each candidate is a CUDA graph of ten calls; they run interleaved, medians of seven. "row alone" is the plan
with the prologue, run without it. Errors: the largest difference from float64 over the largest output, with the prologue and without.
One JSON line per layer.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from graphs import Call, microseconds
from torch.nn.functional import conv2d

from pysim import planner
from pysim.calibration import host
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.torch.layers.gpu_launch import GpuLaunch, PrologueTensors

CALLS, REPLAYS = 10, 7
NORMED = (
    "ic64ih56oc128 ic128ih56oc128 ic224ih56oc128 ic256ih56oc128 ic128ih28oc128 ic288ih28oc128 ic480ih28oc128 ic512ih28oc256 "
    "ic256ih14oc128 ic512ih14oc128 ic992ih14oc128 ic1024ih14oc512 ic512ih7oc128 ic992ih7oc128"
)
MULTIPLIED = (
    "ic32ih112oc16 ic96ih56oc24 ic144ih56oc24 ic144ih28oc40 ic240ih28oc40 ic240ih14oc80 ic480ih14oc80 ic480ih14oc112 ic672ih14oc112 "
    "ic672ih7oc192 ic1152ih7oc192 ic1152ih7oc320"
)


@torch.no_grad()
def measure(w: Conv, multiplied: bool) -> dict[str, Any]:
    on = host.gpu_here()
    plain, fused = (planner.plan(w, on, accuracy="strict", prologue=prologue) for prologue in (False, True))

    def numbers(*shape: int) -> Any:
        return torch.rand(*shape, device="cuda") + 0.5

    x, f = torch.randn(w.batch, w.channels, w.height, w.width, device="cuda"), torch.randn(w.filters, w.channels, 1, 1, device="cuda")
    factor, (gamma, var), (beta, mean) = (
        numbers(w.batch, w.channels, 1, 1),
        numbers(2, w.channels),
        torch.randn(2, w.channels, device="cuda"),
    )
    scale = gamma / torch.sqrt(var + 1e-5)
    prologue = PrologueTensors(factor, None, True) if multiplied else PrologueTensors(scale, beta - mean * scale, False, True)

    def first(_: int = 0) -> Any:
        if multiplied:
            return x * factor
        return torch.relu_(torch.batch_norm(x, gamma, beta, mean, var, False, 0.0, 1e-5, True))

    one, other = GpuLaunch(fused, None), GpuLaunch(plain, None)
    calls: dict[str, Call] = {
        "prologue": lambda _: one(x, f, None, None, prologue=prologue),
        "row alone": lambda _: one(x, f, None, None),
        "convolution": lambda _: other(x, f, None, None),
        "operators": first,
        "operators and convolution": lambda _: other(first(), f, None, None),
    }
    d = x.double()
    d = (
        d * factor.double()
        if multiplied
        else torch.relu(torch.batch_norm(d, *(t.double() for t in (gamma, beta, mean, var)), False, 0.0, 1e-5, True))
    )
    exact = conv2d(d, f.double())
    results = one(x, f, None, None, prologue=prologue), other(first(), f, None, None)
    errors = [float((result.double() - exact).abs().max() / exact.abs().max()) for result in results]
    spent = {name: round(time, 2) for name, time in microseconds(calls, CALLS, REPLAYS).items()}
    row = {"problem": w.text, "first": "product" if multiplied else "norm, relu", "microseconds": spent, "errors": errors}
    return row | {"plans": [fused.name, plain.name], "predicted": [round(1e6 * (one.seconds or 0), 2) for one in (fused, plain)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 1])
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with given.output.open("w") as out:
        out.write(json.dumps({"kind": "header", "device": torch.cuda.get_device_name(), "torch": torch.__version__}) + "\n")
        for batch in given.batch:
            for texts, multiplied in ((NORMED, False), (MULTIPLIED, True)):
                for text in texts.split():
                    row = measure(parse(f"conv:mb{batch}{text}kh1"), multiplied)
                    out.write(json.dumps(row) + "\n")
                    out.flush()
                    times = "  ".join(f"{name} {value:.1f}" for name, value in row["microseconds"].items())
                    predictions = "  ".join(f"{one:.1f}" for one in row["predicted"])
                    print(
                        f"{row['problem']:<28} {times}  predicted {predictions}  errors " + " ".join(f"{one:.1e}" for one in row["errors"]),
                        flush=True,
                    )


if __name__ == "__main__":
    main()
