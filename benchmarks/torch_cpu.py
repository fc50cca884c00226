# SPDX-License-Identifier: Apache-2.0
"""Torchvision's models on this CPU, by PyTorch and by pysim, interleaved: python benchmarks/torch_cpu.py [--how compile] MODEL...

One line per model: the least CPU times of interleaved calls, and the largest difference of the outputs over the largest output. Batch 1,
seeded random weights. Without names: one model of each family. Exit status 1 if a model fails or differs by more than ERROR.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable

import torch
import torchvision

import pysim.torch

ERROR = 1e-4  # far above what rounding adds up to, far below what a wrong operand does
SIZES = {"inception_v3": 299, "swin_v2_t": 256, "swin_v2_s": 256, "swin_v2_b": 256}
FAMILIES = (
    "alexnet", "convnext_tiny", "deeplabv3_mobilenet_v3_large", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet",
    "inception_v3", "lraspp_mobilenet_v3_large", "maxvit_t", "mnasnet1_0", "mobilenet_v2", "mobilenet_v3_large", "regnet_y_400mf",
    "resnet18", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1", "swin_t", "swin_v2_t", "vgg11", "vit_b_32",
)  # fmt: skip


def model_of(name: str) -> torch.nn.Module:
    options = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
    backbone = {"weights_backbone": None} if name.startswith(("deeplab", "fcn", "lraspp")) else {}
    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None, **options, **backbone).eval()


def output(y: torch.Tensor | dict[str, torch.Tensor]) -> torch.Tensor:
    return y["out"] if isinstance(y, dict) else y


def least(calls: list[Callable[[], object]], times: int) -> list[float]:
    """CPU seconds of each call in each round, interleaved."""
    spent = [[0.0] * len(calls) for _ in range(times)]
    for turn in spent:
        for at, call in enumerate(calls):
            start = time.process_time()
            call()
            turn[at] = time.process_time() - start
    return [min(one) for one in zip(*spent, strict=True)]


def compare(name: str, how: str, times: int) -> float:
    """Prints a line; the difference."""
    model, size = model_of(name), SIZES.get(name, 224)
    x = torch.rand(1, 3, size, size)
    with torch.no_grad():
        ours = pysim.torch.optimize(model) if how == "optimize" else torch.compile(model, backend=pysim.torch.backend)
        wanted, found = output(model(x)), output(ours(x))
        error = float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-30))
        seconds = least([lambda: model(x), lambda: ours(x)], times)
    print(f"{name:<30} {seconds[0] * 1e3:9.2f} {seconds[1] * 1e3:9.2f} ms {seconds[0] / seconds[1]:6.2f}x  {error:.1e}", flush=True)
    torch._dynamo.reset()
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=FAMILIES)
    parser.add_argument("--how", choices=("optimize", "compile"), default="optimize")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--times", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"torch {torch.__version__}, {given.threads} threads, {given.how}\nmodel                            PyTorch     pysim")
    wrong = []
    for name in given.models:
        try:
            if not compare(name, given.how, given.times) <= ERROR:
                wrong.append(name)
        except Exception:  # whatever it is: the others are to be seen, too
            traceback.print_exc()
            wrong.append(name)
    if wrong:
        sys.exit(f"failed or wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
