# SPDX-License-Identifier: Apache-2.0
"""Networks of sequences, volumes and transposed convolutions on a GPU: PyTorch, its compiler and pysim.torch.optimize, in CUDA graphs.

    python lab/benchmarks/cuda/volume_networks.py -o FILE [--precision f32,half] [--seconds 200] [--turn FILE] [NETWORK:BATCH ...]

Two of each kind, with random weights: of video R3D-18 (arXiv 1711.11248) and SlowFast 4x16 (arXiv 1812.03982, convolutions alone); of
medicine 3-D U-Nets of three resolutions (arXiv 1606.06650) on cubes of 68 and of 100, and nnU-Net's (arXiv 1809.10486) on a cube of 64; of
audio wav2vec 2.0's feature encoder (arXiv 2006.11477) and EnCodec's encoder of one second (arXiv 2210.13438, without its LSTM); of
sequences gated short convolutions between products, as in LFM2 (arXiv 2511.23404) and H3 (arXiv 2212.14052, of long taps); of generation
DCGAN's generator (arXiv 1511.06434) and HiFi-GAN's (arXiv 2010.05646); of diffusion U-Nets on 64 x 64 without (arXiv 2006.11239) and with
attention at the lower resolutions (arXiv 2112.10752). PyTorch runs in both layouts, with cudnn.benchmark, eager and by torch.compile of
mode default; FP32 is without TF32. Median milliseconds of interleaved replays; errors are root mean squares over that of the same model in
float64. One line of JSON a network. `--turn`: what several such programs, volumes.py and compilers.py (its output, ending in .turn) share:
they compile beside each other, and one at a time has the GPU.
"""

import argparse
import copy
import json
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from compilers import Turn, compile_beside_others
from graphs import microseconds
from torch import Tensor, nn

import pysim.torch

sys.path.append(str(Path(__file__).parents[3] / "tools"))
from extract_torch_workloads import SlowFast, UNet3d


class Block3d(nn.Module):
    """Two 3x3x3 convolutions with a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv3d(channels, filters, 3, stride, 1, bias=False), nn.BatchNorm3d(filters), nn.ReLU())
        self.two = nn.Sequential(nn.Conv3d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm3d(filters))
        self.short = (
            nn.Sequential(nn.Conv3d(channels, filters, 1, stride, bias=False), nn.BatchNorm3d(filters)) if stride > 1 else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.two(self.one(x)) + self.short(x))


def r3d_18() -> nn.Module:
    sizes = [64, 64, 128, 256, 512]
    stem = [nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU()]
    blocks = [block for a, b in pairwise(sizes) for block in (Block3d(a, b, 1 + (a != b)), Block3d(b, b, 1))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400))


def dcgan() -> nn.Module:
    sizes = (1024, 512, 256, 128)
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, 1024, 4, bias=False), nn.BatchNorm2d(1024), nn.ReLU()]
    for a, b in pairwise(sizes):
        layers += [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(128, 3, 4, 2, 1), nn.Tanh())


def wav2vec2() -> nn.Module:
    of = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
    layers: list[nn.Module] = []
    for at, (kernel, stride) in enumerate(of):
        layers += [nn.Conv1d(512 if at else 1, 512, kernel, stride, bias=False)]
        layers += [nn.GELU()] if at else [nn.GroupNorm(512, 512), nn.GELU()]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    """A value and what layers make of it."""

    def __init__(self, of: nn.Module, short: nn.Module | None = None) -> None:
        super().__init__()
        self.of, self.short = of, short or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.short(x) + self.of(x)
        return added


def encodec() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv1d(1, 32, 7, padding=3)]
    for channels, stride in ((32, 2), (64, 4), (128, 5), (256, 8)):
        inner = nn.Sequential(nn.ELU(), nn.Conv1d(channels, channels // 2, 3, padding=1), nn.ELU(), nn.Conv1d(channels // 2, channels, 1))
        layers += [Residual(inner), nn.ELU(), nn.Conv1d(channels, 2 * channels, 2 * stride, stride, padding=stride // 2)]
    return nn.Sequential(*layers, nn.ELU(), nn.Conv1d(512, 128, 7, padding=3))


class Gated(nn.Module):
    """A product, a causal depthwise convolution between two gates, a product, and a gated product of four times the channels."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(channels), nn.LayerNorm(channels)])
        self.first, self.last = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.conv = nn.Conv1d(channels, channels, taps, padding=taps - 1, groups=channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        before, after, value = self.first(self.norms[0](x)).chunk(3, -1)
        mixed = self.conv((before * value).transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        x = x + self.last(after * mixed)
        gate, up = self.wide(self.norms[1](x)).chunk(2, -1)
        y: Tensor = x + self.narrow(nn.functional.silu(gate) * up)
        return y


def gated(channels: int, taps: int) -> nn.Module:
    return nn.Sequential(*(Gated(channels, taps) for _ in range(4)))


class NnUnet(nn.Module):
    """Two padded 3x3x3 convolutions, instance norms and leaky ReLUs a level, the first with a stride of 2; up by 2x2x2."""

    def __init__(self, sizes: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()

        def level(a: int, b: int, stride: int = 1) -> nn.Module:
            halves = ((a, b, stride), (b, b, 1))
            return nn.Sequential(
                *(one for a, b, s in halves for one in (nn.Conv3d(a, b, 3, s, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(0.01)))
            )

        self.down = nn.ModuleList([level(1, sizes[0]), *(level(a, b, 2) for a, b in pairwise(sizes))])
        self.up = nn.ModuleList([nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(list(pairwise(sizes)))])
        self.join = nn.ModuleList([level(2 * a, a) for a in sizes[-2::-1]])
        self.last = nn.Conv3d(sizes[0], 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = list[Tensor]()
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        for up, join, other in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), other], 1))
        out: Tensor = self.last(x)
        return out


class Mixed(nn.Module):
    """The mean of residual blocks of several kernels, each of dilated convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.of = nn.ModuleList([nn.Sequential(*(self._block(channels, taps, apart) for apart in (1, 3, 5))) for taps in (3, 7, 11)])

    @staticmethod
    def _block(channels: int, taps: int, apart: int) -> nn.Module:
        layers = [nn.Conv1d(channels, channels, taps, padding=apart * (taps // 2), dilation=apart), nn.LeakyReLU(0.1)]
        return Residual(nn.Sequential(nn.LeakyReLU(0.1), *layers, nn.Conv1d(channels, channels, taps, padding=taps // 2)))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (self.of[0](x) + self.of[1](x) + self.of[2](x)) / 3
        return y


def hifigan() -> nn.Module:
    sizes, strides = (256, 128, 64, 32, 16), (8, 8, 2, 2)
    layers: list[nn.Module] = [nn.Conv1d(80, sizes[0], 7, padding=3)]
    for (a, b), stride in zip(pairwise(sizes), strides, strict=True):
        layers += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(a, b, 2 * stride, stride, stride // 2), Mixed(b)]
    return nn.Sequential(*layers, nn.LeakyReLU(), nn.Conv1d(sizes[-1], 1, 7, padding=3), nn.Tanh())


class Attention(nn.Module):
    """Self-attention of pixels in heads of 64 channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, channels), channels // 64
        self.inner, self.outer = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.inner(self.norm(x).flatten(2).transpose(1, 2))
        q, k, v = (of.unflatten(2, (self.heads, -1)).transpose(1, 2) for of in rows.chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y: Tensor = x + self.outer(mixed).transpose(1, 2).unflatten(2, x.shape[2:])
        return y


def _block(channels: int, filters: int) -> nn.Module:
    halves = ((channels, filters), (filters, filters))
    layers = [layer for a, b in halves for layer in (nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, b, 3, padding=1))]
    return Residual(nn.Sequential(*layers), nn.Conv2d(channels, filters, 1) if channels != filters else None)


class Diffusion(nn.Module):
    """Two residual blocks at each of three resolutions on either side; strided and transposed convolutions between them."""

    def __init__(self, sizes: tuple[int, ...] = (128, 256, 384), attention: bool = False) -> None:
        super().__init__()

        def more(channels: int) -> nn.Module:
            return Attention(channels) if attention and channels > sizes[0] else nn.Identity()

        self.first = nn.Conv2d(4, sizes[0], 3, padding=1)
        self.down = nn.ModuleList([nn.Sequential(_block(sizes[max(at - 1, 0)], b), _block(b, b), more(b)) for at, b in enumerate(sizes)])
        self.shrink = nn.ModuleList([nn.Conv2d(b, b, 3, 2, 1) for b in sizes[:-1]])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(b, a, 4, 2, 1) for a, b in reversed(list(pairwise(sizes)))])
        self.up = nn.ModuleList([nn.Sequential(_block(2 * a, a), _block(a, a), more(a)) for a in sizes[-2::-1]])
        self.last = nn.Sequential(nn.GroupNorm(32, sizes[0]), nn.SiLU(), nn.Conv2d(sizes[0], 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        x, kept = self.first(x), list[Tensor]()
        for at, blocks in enumerate(self.down):
            x = blocks(x)
            if at < len(self.shrink):
                kept.append(x)
                x = self.shrink[at](x)
        for grow, blocks in zip(self.grow, self.up, strict=True):
            x = blocks(torch.cat([grow(x), kept.pop()], 1))
        out: Tensor = self.last(x)
        return out


class Slow(nn.Module):
    """SlowFast, its two results side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.of = SlowFast()

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([one.mean((2, 3, 4)) for one in self.of(x)], 1)


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "r3d_18": (r3d_18, (3, 16, 112, 112)),
    "slowfast": (Slow, (3, 32, 224, 224)),
    "unet3d": (UNet3d, (3, 68, 68, 68)),
    "unet3d_100": (UNet3d, (3, 100, 100, 100)),
    "wav2vec2": (wav2vec2, (1, 16000)),
    "encodec": (encodec, (1, 24000)),
    "dcgan": (dcgan, (100, 1, 1)),
    "diffusion": (Diffusion, (4, 64, 64)),
    "diffusion_attention": (partial(Diffusion, (128, 256, 512), True), (4, 64, 64)),
    "nnunet": (NnUnet, (1, 64, 64, 64)),
    "hifigan": (hifigan, (80, 64)),
    "gated": (partial(gated, 1024, 3), (1024, 1024)),
    "gated_long": (partial(gated, 768, 31), (2048, 768)),
}


@torch.no_grad()
def measure(name: str, batch: int, precision: str, turn: Turn) -> dict[str, Any]:
    torch.manual_seed(0)
    turn.take()
    make, shape = NETWORKS[name]
    model, x = make().cuda().train(), torch.randn(batch, *shape, device="cuda")
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    model(torch.randn(max(batch, 2), *shape, device="cuda"))
    exact = model.eval().double()(x.double())
    kind = {"f32": torch.float32, "half": torch.float16, "bf16": torch.bfloat16}[precision]
    model, x = model.to(kind), x.to(kind)
    torch.backends.cudnn.benchmark = True
    layouts = {"": (model, x)}
    if len(shape) > 2:  # rows of channels, and sequences, have one layout
        last = torch.channels_last if len(shape) == 3 else torch.channels_last_3d
        layouts[" channels_last"] = copy.deepcopy(model).to(memory_format=last), x.to(memory_format=last)
    calls: dict[str, Any] = {}
    for layout, (one, given) in layouts.items():
        calls[f"eager{layout}"] = partial(one, given)
        calls[f"compile{layout}"] = partial(torch.compile(one, dynamic=False), given)
    ours = {f"pysim{layout}": pysim.torch.optimize(one, cuda_graph="caller") for layout, (one, _) in layouts.items()}
    calls |= {f"pysim{layout}": partial(ours[f"pysim{layout}"], given) for layout, (_, given) in layouts.items()}
    errors, firsts = {}, {}
    for label, call in calls.items():
        start = time.perf_counter()
        y = call()
        torch.cuda.synchronize()
        firsts[label] = round(time.perf_counter() - start, 2)
        call()
        errors[label] = float((y.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())
    counted = {label: lambda at, call=call: call() for label, call in calls.items()}
    times = {label: round(value / 1e3, 4) for label, value in microseconds(counted, 3, 9).items()}
    best = {who: min(of for label, of in times.items() if label.startswith("pysim") == who) for who in (True, False)}
    decisions = {label: [one._asdict() for one in pysim.torch.report(module)] for label, module in ours.items()}
    turn.leave()
    about = {"network": name, "batch": batch, "precision": precision, "ratio": round(best[False] / best[True], 3)}
    return about | {"milliseconds": times, "errors": errors, "first_seconds": firsts, "decisions": decisions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "networks", nargs="*", default=[f"{name}:{1 if 'unet' in name else 8}" for name in NETWORKS], metavar="NETWORK:BATCH"
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--precision", default="f32,half")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no other network is started")
    parser.add_argument("--turn", type=Path)
    given = parser.parse_args()
    turn = Turn(given.turn or given.output.with_suffix(".turn"))
    compile_beside_others(turn)
    started = time.monotonic()
    for word in given.networks:
        for precision in given.precision.split(","):
            if time.monotonic() - started > given.seconds:
                return
            name, _, batch = word.partition(":")
            try:
                row = measure(name, int(batch), precision, turn)
            except Exception as error:
                turn.leave()
                row = {"network": word, "precision": precision, "failed": repr(error)[:400]}
            print({key: row[key] for key in row if key != "decisions"}, flush=True)
            with given.output.open("a") as out:
                out.write(json.dumps(row) + "\n")
            torch._dynamo.reset()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
