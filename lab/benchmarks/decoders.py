# SPDX-License-Identifier: Apache-2.0
"""Networks of sequences, volumes and transposed convolutions beside ONNX Runtime and OpenVINO on one thread.

    taskset -c 1 python lab/benchmarks/decoders.py [-o FILE] [--milliseconds 800] [NETWORK ...]

DCGAN's generator of 64 and of 128 features, U-Nets of two and three axes whose decoders go up by kernels of 3 or 2 with a stride of 2, a
decoder of audio frames as in EnCodec, wav2vec 2.0's feature encoder, torchvision's R3D-18 and MC3-18; batch 1, random weights. Times are
CPU times, the lower deciles of interleaved samples. One JSON line a network: seconds, the largest difference from ONNX Runtime over the
largest result, and the faster peer's time over ours.
"""

import argparse
import json
import math
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import openvino
import torch
from products import lower_deciles
from torch import nn
from torchvision.models import video

import pysim
from pysim.measure.store import environment

AXES: dict[int, Any] = {
    2: (nn.Conv2d, nn.ConvTranspose2d, nn.BatchNorm2d, nn.MaxPool2d),
    3: (nn.Conv3d, nn.ConvTranspose3d, nn.BatchNorm3d, nn.MaxPool3d),
}


def generator(features: int) -> nn.Module:
    """DCGAN's, 64 x 64 pixels."""
    widths, parts = [100, *(features * 2**power for power in (3, 2, 1, 0))], list[nn.Module]()
    for at, (before, after) in enumerate(pairwise(widths)):
        parts += [nn.ConvTranspose2d(before, after, 4, *((2, 1) if at else (1, 0)), bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, nn.ConvTranspose2d(features, 3, 4, 2, 1, bias=False), nn.Tanh())


class UNet(nn.Module):
    """Two convolutions a level; its decoder goes up by a transposed convolution of `kernel` taps and stride 2."""

    def __init__(self, axes: int, widths: tuple[int, ...], kernel: int) -> None:
        super().__init__()
        conv, up, norm, pool = AXES[axes]
        about = {"padding": kernel // 2, "output_padding": kernel % 2} if kernel % 2 else {}

        def level(before: int, after: int) -> nn.Module:
            pairs = [(before, after), (after, after)]
            return nn.Sequential(*(part for one in pairs for part in (conv(*one, 3, padding=1, bias=False), norm(one[1]), nn.ReLU())))

        def upward(before: int, after: int) -> nn.Module:
            return nn.Sequential(up(before, after, kernel, 2, bias=False, **about), norm(after), nn.ReLU())

        inner = list(pairwise(widths[1:]))[::-1]
        self.down = nn.ModuleList([level(*one) for one in pairwise(widths)])
        self.up = nn.ModuleList([upward(after, before) for before, after in inner])
        self.joined = nn.ModuleList([level(2 * before, before) for before, _ in inner])
        self.pool, self.last = pool(2), conv(widths[1], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for at, level in enumerate(self.down):
            x = level(self.pool(x) if at else x)
            kept.append(x)
        for at, (up, level) in enumerate(zip(self.up, self.joined, strict=True)):
            x = level(torch.cat([up(x), kept[-2 - at]], 1))
        y: torch.Tensor = self.last(x)
        return y


def audio() -> nn.Module:
    """128 numbers a frame to 320 samples."""
    parts: list[nn.Module] = [nn.Conv1d(128, 256, 7, padding=3)]
    for width, stride in ((256, 8), (128, 5), (64, 4), (32, 2)):
        up = nn.ConvTranspose1d(width, width // 2, 2 * stride, stride, (stride + 1) // 2, output_padding=stride % 2)
        parts += [nn.ELU(), up, nn.ELU(), nn.Conv1d(width // 2, width // 2, 3, padding=1)]
    return nn.Sequential(*parts, nn.ELU(), nn.Conv1d(16, 1, 7, padding=3))


def wav2vec2() -> nn.Module:
    """16,000 samples to 49 frames."""
    parts: list[nn.Module] = []
    for at, (taps, stride) in enumerate(((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))):
        parts += [nn.Conv1d(512 if at else 1, 512, taps, stride, bias=False), *([] if at else [nn.GroupNorm(512, 512)]), nn.GELU()]
    return nn.Sequential(*parts)


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "dcgan": (generator(64), (1, 100, 1, 1)),
        "dcgan of 128 features": (generator(128), (1, 100, 1, 1)),
        "unet of 3x3": (UNet(2, (3, 32, 64, 128, 256), 3), (1, 3, 96, 96)),
        "unet of 3x3x3": (UNet(3, (1, 16, 32, 64), 3), (1, 1, 16, 48, 48)),
        "unet of 2x2x2": (UNet(3, (1, 16, 32, 64), 2), (1, 1, 16, 48, 48)),
        "encodec": (audio(), (1, 128, 75)),
        "wav2vec2": (wav2vec2(), (1, 1, 16000)),
        "r3d_18": (video.r3d_18(), (1, 3, 8, 112, 112)),
        "mc3_18": (video.mc3_18(), (1, 3, 8, 112, 112)),
    }


def measure(name: str, network: nn.Module, shape: tuple[int, ...], seconds: float) -> dict[str, Any]:
    x, options = torch.rand(shape), onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        torch.onnx.export(network.eval(), (x,), path, dynamo=False, input_names=["x"])
        ours, ort = pysim.load(path), onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        hints = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        request, array = openvino.Core().compile_model(path, "CPU", hints).create_infer_request(), x.numpy()

    def by_openvino() -> Any:
        request.infer([array], share_inputs=True, share_outputs=True)
        return request.get_output_tensor(0).data

    calls = {"pysim": lambda: ours(array), "onnxruntime": lambda: ort.run(None, {"x": array})[0], "openvino": by_openvino}
    y, right = np.asarray(ours(array)), calls["onnxruntime"]()
    difference = float(np.abs(y - right).max() / np.abs(right).max())
    if not difference < 1e-4:
        raise SystemExit(f"{name}: pysim differs from ONNX Runtime by {difference:.1e}")
    times = lower_deciles(calls, seconds)
    ratio = min(times["onnxruntime"], times["openvino"]) / times["pysim"]
    return {"network": name, "seconds": times, "difference": difference, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--milliseconds", type=float, default=800)
    given = parser.parse_args()
    torch.manual_seed(0)
    found = []
    for name, of in networks().items():
        if given.networks and name not in given.networks:
            continue
        found.append(one := measure(name, *of, given.milliseconds / 1e3))
        print(
            f"{one['ratio']:.2f}  "
            + "  ".join(f"{of} {spent * 1e3:.2f}" for of, spent in one["seconds"].items())
            + f" ms  {one['network']}"
        )
    ratios = [one["ratio"] for one in found]
    print(f"# {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f} in the mean, least {min(ratios):.2f}")
    if given.output:
        lines = [{"kind": "header", "environment": environment()}, *found]
        given.output.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
