# SPDX-License-Identifier: Apache-2.0
"""Writes the built-in sets of networks along one and three axes and of transposed convolutions, in the order in which PyTorch runs their
convolutions, with random weights.

r3d18 is torchvision's `r3d_18` (arXiv 1711.11248) on 16 frames of 112 x 112; wav2vec2 and encodec are transformers' models under their
default configurations (arXiv 2006.11477, 2210.13438) on one second of sound, 16,000 and 24,000 samples. unet3d is Figure 2 of arXiv
1606.06650, slowfast the 4x16 network of Table 1 of arXiv 1812.03982 with R50 blocks, dcgan the generator of Figure 1 of arXiv 1511.06434
with the 4x4 kernels of the authors' program, and the discriminator that mirrors it; these three are written below.

    python tools/extract_torch_workloads.py            write the files
    python tools/extract_torch_workloads.py --check    exit 1 if a file differs from what would be written
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pysim.problem.text import SHIPPED, parse
from pysim.problem.windows import conv_of

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def text_of(layer: Any, x: Tensor, y: Tensor) -> str:
    """The problem of one call of a layer."""
    pads = (
        layer.padding
        if not isinstance(layer.padding, str)
        else [d * (k - 1) // 2 for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    )
    if isinstance(layer, CONVOLUTIONS):
        strides, dilations = layer.stride, layer.dilation
        return conv_of(x.shape, layer.weight.shape, strides, (*pads, *pads), dilations, layer.groups, "f32").text
    along = "dhw"[-len(pads) :]
    groups = f"g{layer.groups}" * (layer.groups > 1)

    def each(letter: str, numbers: Any, usual: int | None = None) -> str:
        return "".join(f"{letter}{axis}{number}" for axis, number in zip(along, numbers, strict=True)) if {*numbers} != {usual} else ""

    sizes = each("i", x.shape[2:]) + f"oc{y.shape[1]}" + each("o", y.shape[2:]) + each("k", layer.kernel_size)
    more = each("s", layer.stride, 1) + each("p", pads) + each("d", [d - 1 for d in layer.dilation], 0)
    return f"deconv:{groups}mb{x.shape[0]}ic{x.shape[1]}{sizes}{more}"


def convolutions(model: nn.Module, *inputs: Tensor) -> list[str]:
    """The lines of a model's convolutions."""
    lines: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, CONVOLUTIONS + TRANSPOSED):
            layer.register_forward_hook(lambda one, x, y, name=name: lines.append(f'{text_of(one, x[0], y)}_n"{name.replace(".", "_")}"'))
    with torch.no_grad():
        model.eval()(*inputs)
    for line in lines:
        parse(line)
    return lines


def _pair(sizes: tuple[int, int, int], norms: bool) -> nn.Module:
    each = [(nn.Conv3d(a, b, 3), *((nn.BatchNorm3d(b), nn.ReLU()) if norms else ())) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(layer for layers in each for layer in layers))


class UNet3d(nn.Module):
    """Two 3x3x3 convolutions without padding at each resolution on either side; 2x2x2 up-convolutions; cropped shortcuts."""

    def __init__(self, resolutions: int = 3, norms: bool = True) -> None:
        super().__init__()
        ends = [64 * 2**level for level in range(resolutions)]  # channels of each resolution
        self.down = nn.ModuleList([_pair((ends[level - 1] if level else 3, end // 2, end), norms) for level, end in enumerate(ends)])
        self.up = nn.ModuleList([nn.ConvTranspose3d(size, size, 2, 2) for size in ends[:0:-1]])
        self.join = nn.ModuleList([_pair((3 * size, size, size), norms) for size in ends[-2::-1]])
        self.last, self.pool = nn.Conv3d(64, 3, 1), nn.MaxPool3d(2)

    def forward(self, x: Tensor) -> Tensor:
        shortcuts = []
        for level, stage in enumerate(self.down):
            x = stage(self.pool(x) if level else x)
            shortcuts.append(x)
        for up, join, other in zip(self.up, self.join, shortcuts[-2::-1], strict=True):
            x = up(x)
            for axis in (2, 3, 4):
                other = other.narrow(axis, (other.shape[axis] - x.shape[axis]) // 2, x.shape[axis])
            x = join(torch.cat([other, x], 1))
        out: Tensor = self.last(x)
        return out


class Bottleneck(nn.Module):
    """T x 1 x 1, 1 x 3 x 3 and 1 x 1 x 1, and a projection where the channels change."""

    def __init__(self, channels: int, inner: int, temporal: int, stride: int) -> None:
        super().__init__()
        self.a = nn.Conv3d(channels, inner, (temporal, 1, 1), padding=(temporal // 2, 0, 0))
        self.b = nn.Conv3d(inner, inner, (1, 3, 3), stride=(1, stride, stride), padding=(0, 1, 1))
        self.c = nn.Conv3d(inner, 4 * inner, 1)
        self.branch1 = nn.Conv3d(channels, 4 * inner, 1, stride=(1, stride, stride)) if channels != 4 * inner else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.c(self.b(self.a(x))) + self.branch1(x)
        return added


class SlowFast(nn.Module):
    """4 frames on the slow pathway, 32 on the fast one of an eighth of the channels; lateral 5x1x1 convolutions of stride 8."""

    def __init__(self) -> None:
        super().__init__()
        self.slow1 = nn.Conv3d(3, 64, (1, 7, 7), stride=(1, 2, 2), padding=(0, 3, 3))
        self.fast1 = nn.Conv3d(3, 8, (5, 7, 7), stride=(1, 2, 2), padding=(2, 3, 3))
        self.pool = nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1))
        self.lateral, self.slow, self.fast = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        slow, fast = 64, 8
        for stage, (inner, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            self.lateral.append(nn.Conv3d(fast, 2 * fast, (5, 1, 1), stride=(8, 1, 1), padding=(2, 0, 0)))
            self.slow.append(self._stage(slow + 2 * fast, inner, blocks, 3 if stage > 1 else 1, 1 + (stage > 0)))
            self.fast.append(self._stage(fast, inner // 8, blocks, 3, 1 + (stage > 0)))
            slow, fast = 4 * inner, inner // 2

    @staticmethod
    def _stage(channels: int, inner: int, blocks: int, temporal: int, stride: int) -> nn.Sequential:
        rest = [Bottleneck(4 * inner, inner, temporal, 1) for _ in range(blocks - 1)]
        return nn.Sequential(Bottleneck(channels, inner, temporal, stride), *rest)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        slow, fast = self.pool(self.slow1(x[:, :, ::8])), self.pool(self.fast1(x))
        for lateral, one, other in zip(self.lateral, self.slow, self.fast, strict=True):
            slow, fast = one(torch.cat([slow, lateral(fast)], 1)), other(fast)
        return slow, fast


def dcgan() -> nn.Module:
    """The generator of 64 x 64 images from 100 numbers, and the discriminator."""
    sizes = (1024, 512, 256, 128, 3)
    first = nn.ConvTranspose2d(100, 1024, 4)
    ups = [nn.ConvTranspose2d(a, b, 4, 2, 1) for a, b in itertools.pairwise(sizes)]
    downs = [nn.Conv2d(b, a, 4, 2, 1) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True)]
    return nn.Sequential(first, *ups, *downs, nn.Conv2d(1024, 1, 4))


def r3d18() -> list[str]:
    from torchvision.models.video import r3d_18

    return convolutions(r3d_18(), torch.zeros(1, 3, 16, 112, 112))


def wav2vec2() -> list[str]:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return convolutions(Wav2Vec2Model(Wav2Vec2Config()), torch.zeros(1, 16000))


def encodec() -> list[str]:
    from transformers import EncodecConfig, EncodecModel

    return convolutions(EncodecModel(EncodecConfig()), torch.zeros(1, 1, 24000))


SETS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "r3d18": ("R3D-18 (arXiv 1711.11248), torchvision's, 16 frames of 112 x 112", r3d18),
    "wav2vec2": ("wav2vec 2.0 base (arXiv 2006.11477), transformers', 16,000 samples", wav2vec2),
    "encodec": ("EnCodec at 24 kHz (arXiv 2210.13438), transformers', 24,000 samples, padded by it beforehand", encodec),
    "unet3d": (
        "3D U-Net: Figure 2 of arXiv 1606.06650, 132 x 132 x 116",
        lambda: convolutions(UNet3d(4, norms=False).to("meta"), torch.zeros(1, 3, 116, 132, 132, device="meta")),
    ),
    "slowfast": (
        "SlowFast 4x16, R50: Table 1 of arXiv 1812.03982, 32 frames of 224 x 224",
        lambda: convolutions(SlowFast().to("meta"), torch.zeros(1, 3, 32, 224, 224, device="meta")),
    ),
    "dcgan": (
        "DCGAN: generator of Figure 1 of arXiv 1511.06434, 4x4 kernels, then its discriminator",
        lambda: convolutions(dcgan().to("meta"), torch.zeros(1, 100, 1, 1, device="meta")),
    ),
}


def text_of_set(name: str) -> str:
    header, lines = SETS[name]
    return "\n".join((f"# {header}", "# written by tools/extract_torch_workloads.py", *lines())) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(description="Writes the sets of networks along one and three axes.")
    options.add_argument("--check", action="store_true", help="exit 1 if a file differs")
    check, differs = options.parse_args().check, 0
    for name in SETS:
        text, path = text_of_set(name), SHIPPED / f"{name}.txt"
        if check and (not path.exists() or path.read_text() != text):
            print(f"{path} differs")
            differs = 1
        elif not check:
            path.write_text(text)
    return differs


if __name__ == "__main__":
    sys.exit(main())
