# SPDX-License-Identifier: Apache-2.0
"""Networks of kinds that torchvision lacks, small enough to compile in seconds, for lab/benchmarks/cuda/models.py and graph_fault.py.

Weights are random. Between convolutions and products they have what a compiler fuses and a library of layers does not: group norms, gates,
upsampling, concatenation, attention.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional


class DecoderBlock(nn.Module):
    """Two 3x3 convolutions, each after GroupNorm and SiLU, beside an identity."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Any) -> Any:
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(functional.silu(self.norm2(y)))


def decoder() -> nn.Module:
    """The decoder of a variational autoencoder: 4 latent channels to an image of eight times the size."""
    layers: list[nn.Module] = [nn.Conv2d(4, 256, 3, padding=1)]
    widths = (256, 256, 128, 64)
    for at, width in enumerate(widths):
        layers += [DecoderBlock(widths[max(at - 1, 0)], width), DecoderBlock(width, width)]
        if at < 3:
            layers += [nn.Upsample(scale_factor=2.0, mode="nearest"), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.GroupNorm(32, widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], 3, 3, padding=1))


def _double(inputs: int, outputs: int) -> nn.Sequential:
    parts = [(nn.Conv2d(a, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()) for a in (inputs, outputs)]
    return nn.Sequential(*[layer for part in parts for layer in part])


class UNet(nn.Module):
    """Four levels down by max pooling, up by transposed convolutions, with concatenations."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << at for at in range(levels)]
        self.down = nn.ModuleList(_double(3 if not at else widths[at - 1], one) for at, one in enumerate(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * one, one, 2, 2) for one in widths[:-1])
        self.join = nn.ModuleList(_double(2 * one, one) for one in widths[:-1])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for at, down in enumerate(self.down):
            x = down(functional.max_pool2d(x, 2) if at else x)
            kept.append(x)
        for at in reversed(range(len(self.up))):
            x = self.join[at](torch.cat([kept[at], self.up[at](x)], 1))
        return self.last(x)


class NearestUNet(UNet):
    """The same, up to the nearest pixels with a convolution."""

    def __init__(self, width: int = 64, levels: int = 4) -> None:
        super().__init__(width, levels)
        self.up = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(2 * one, one, 3, padding=1, bias=False), nn.BatchNorm2d(one), nn.ReLU())
            for one in [width << at for at in range(levels - 1)]
        )


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Any) -> Any:
        gate = functional.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.excite(functional.relu(self.squeeze(gate))))


class GatedBlock(nn.Module):
    """A residual bottleneck with a gate; where the gate is and how wide its parts are differ between SE-ResNet and RegNetY."""

    def __init__(self, inputs: int, outputs: int, inner: int, stride: int, groups: int, gate: int, gate_last: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.norm2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.norm3 = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.inner_gate = nn.Identity() if gate_last else Gate(inner, gate)
        self.outer_gate = Gate(outputs, gate) if gate_last else nn.Identity()
        same = inputs == outputs and stride == 1
        self.skip = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.inner_gate(functional.relu(self.norm2(self.conv2(y))))
        return functional.relu(self.skip(x) + self.outer_gate(self.norm3(self.conv3(y))))


def _classifier(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(width, 1000)]


def se_resnet() -> nn.Module:
    """SE-ResNet-50."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for at, depth in enumerate((3, 4, 6, 3)):
        inner = 64 << at
        for block in range(depth):
            layers.append(GatedBlock(inputs, 4 * inner, inner, 1 if at == 0 or block else 2, 1, inner // 4, True))
            inputs = 4 * inner
    return nn.Sequential(*layers, *_classifier(inputs))


def regnet() -> nn.Module:
    """Like RegNetY-400MF: grouped 3x3 convolutions, a gate before the last convolution of each block."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    inputs = 32
    for width, depth in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for block in range(depth):
            layers.append(GatedBlock(inputs, width, width, 1 if block else 2, width // 8, inputs // 4, False))
            inputs = width
    return nn.Sequential(*layers, *_classifier(inputs))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, tokens, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """197 tokens of 16x16 pixels, like ViT-small with half its depth."""

    def __init__(self, width: int = 384, depth: int = 6, heads: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class SuperResolution(nn.Module):
    """Residual blocks without norms, and pixel shuffles to four times the size, as in EDSR."""

    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)) for _ in range(depth)
        )
        self.up = nn.Sequential(*[layer for _ in range(2) for layer in (nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2))])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = x + 0.1 * block(x)
        return self.last(self.up(x))


class NormUNet(nn.Module):
    """Three levels of residual blocks with GroupNorm and SiLU, attention on the lowest, down by strides, up by transposed convolutions."""

    def __init__(self, width: int = 64, levels: int = 3) -> None:
        super().__init__()
        widths = [width << at for at in range(levels)]
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.blocks = nn.ModuleList(DecoderBlock(one, one) for one in widths)
        self.down = nn.ModuleList(nn.Conv2d(one, 2 * one, 3, 2, 1) for one in widths[:-1])
        self.norm, self.attention = nn.LayerNorm(widths[-1]), Attention(widths[-1], 4)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * one, one, 4, 2, 1) for one in widths[:-1])
        self.join = nn.ModuleList(DecoderBlock(2 * one, one) for one in widths[:-1])
        self.last = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: Any) -> Any:
        x, kept = self.first(x), []
        for at, block in enumerate(self.blocks):
            x = block(self.down[at - 1](x) if at else x)
            kept.append(x)
        tokens = x.flatten(2).transpose(1, 2)
        x = x + self.attention(self.norm(tokens)).transpose(1, 2).reshape(x.shape)
        for at in reversed(range(len(self.up))):
            x = self.join[at](torch.cat([kept[at], self.up[at](x)], 1))
        return self.last(x)


class Upscaler(nn.Module):
    """Dense blocks with leaky ReLU, then a transposed convolution to twice the size, beside bilinear interpolation."""

    def __init__(self, width: int = 48, grows: int = 24, depth: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.dense = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width + at * grows, grows, 3, padding=1) for at in range(4)) for _ in range(depth)
        )
        self.narrow = nn.ModuleList(nn.Conv2d(width + 4 * grows, width, 1) for _ in range(depth))
        self.up = nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        for layers, narrow in zip(self.dense, self.narrow, strict=True):
            parts = [y]
            for layer in layers:
                parts.append(functional.leaky_relu(layer(torch.cat(parts, 1)), 0.2))
            y = y + narrow(torch.cat(parts, 1))
        return self.up(y) + functional.interpolate(x, scale_factor=2.0, mode="bilinear")


class ConvNeXtV2Block(nn.Module):
    """A depthwise 7x7 convolution, a layer norm, and two products with global response normalization between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width, 1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma, self.beta = nn.Parameter(torch.randn(4 * width) * 0.1), nn.Parameter(torch.zeros(4 * width))

    def forward(self, x: Any) -> Any:
        y = functional.gelu(self.wide(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        size = y.norm(2, (1, 2), keepdim=True)
        y = y + self.beta + self.gamma * (y * (size / (size.mean(-1, keepdim=True) + 1e-6)))
        return x + self.narrow(y).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of NCHW images."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext_v2() -> nn.Module:
    """Like ConvNeXt-V2-atto."""
    layers: list[nn.Module] = [nn.Conv2d(3, 40, 4, 4), ChannelNorm(40, 1e-6)]
    for at, depth in enumerate((2, 2, 6, 2)):
        width = 40 << at
        layers += [ChannelNorm(width // 2, 1e-6), nn.Conv2d(width // 2, width, 2, 2)] if at else []
        layers += [ConvNeXtV2Block(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.LayerNorm(320, 1e-6), nn.Linear(320, 1000))


class Small(NamedTuple):
    """How a network is made, and the channels and the size of its input."""

    make: Callable[[], nn.Module]
    channels: int
    size: int


NETWORKS = {
    "decoder": Small(decoder, 4, 32),
    "unet": Small(UNet, 3, 128),
    "unet_nearest": Small(NearestUNet, 3, 128),
    "se_resnet": Small(se_resnet, 3, 224),
    "regnet": Small(regnet, 3, 224),
    "vit": Small(VisionTransformer, 3, 224),
    "super_resolution": Small(SuperResolution, 3, 48),
    "convnext_v2": Small(convnext_v2, 3, 224),
    "unet_norms": Small(NormUNet, 4, 64),
    "upscaler": Small(Upscaler, 3, 96),
}
