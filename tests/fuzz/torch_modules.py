# SPDX-License-Identifier: Apache-2.0
"""Random modules of PyTorch: layers of every kind, and code with state, random numbers, control flow and side effects of its own."""

import random

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch_models import FrozenNorm
from torch_odd_modules import ODD

# Layers


def conv(rng, channels, out=None):
    """A convolution that keeps an image's size, or halves it."""
    size, dilation = rng.choice(((1, 1), (1, 1), (3, 1), (3, 1), (3, 2), (5, 1)))
    groups = rng.choice((1, 1, 1, 2, channels)) if channels % 2 == 0 else rng.choice((1, 1, channels))
    out = out or groups * max(1, rng.choice((4, 6, 8, 12, 16)) // groups)
    groups = groups if out % groups == 0 else 1
    stride = rng.choice((1, 1, 1, 1, 2)) if size > 1 else 1
    padding = rng.choice((size // 2 * dilation,) * 3 + (("same",) if stride == 1 else ()))
    mode = rng.choice(("zeros",) * 8 + ("reflect", "circular")) if padding != "same" and dilation == 1 else "zeros"
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": rng.random() < 0.6}
    return nn.Conv2d(channels, out, size, **options, padding_mode=mode), out


def activation(rng):
    kinds = (nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.LeakyReLU)
    return rng.choice((lambda: rng.choice(kinds)(inplace=rng.random() < 0.5), nn.GELU, nn.Sigmoid, nn.Tanh, nn.Identity))()


def norm(rng, channels):
    kinds = (nn.BatchNorm2d,) * 4 + (lambda c: FrozenNorm(c, 1e-3), OwnNorm, nn.Identity, lambda c: nn.InstanceNorm2d(c, affine=True))
    groups = 2 if channels % 2 == 0 else 1
    return rng.choice((*kinds, lambda c: nn.GroupNorm(groups, c), ChannelNorm))(channels)


class OwnNorm(nn.Module):
    """Without a counter of training calls."""

    def __init__(self, channels):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        return functional.batch_norm(x, self.running_mean, self.running_var, training=self.training, momentum=0.3, eps=1e-3)


class ChannelNorm(nn.LayerNorm):
    """Over the channels of images."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Fused(nn.Sequential):
    """Convolution, norm, activation: what is fused most."""

    @classmethod
    def make(cls, rng, channels, out=None):
        layer, out = conv(rng, channels, out)
        return cls(layer, norm(rng, out), activation(rng)), out


class Residual(nn.Module):
    def __init__(self, rng, channels):
        super().__init__()
        self.body, self.in_place = nn.Sequential(same(rng, channels), same(rng, channels)), rng.random() < 0.5
        self.short, self.last = rng.choice((nn.Identity(), nn.Conv2d(channels, channels, 1))), activation(rng)

    def forward(self, x):
        y = self.body(x)
        if self.in_place:
            y += self.short(x)
        else:
            y = self.short(x) + y
        return self.last(y)


def same(rng, channels):
    """A fused block that keeps channels and size."""
    layers = nn.Conv2d(channels, channels, 3, padding=1, bias=rng.random() < 0.5), norm(rng, channels), activation(rng)
    return Fused(*layers)


class SqueezeExcite(nn.Module):
    def __init__(self, rng, channels):
        super().__init__()
        self.a, self.b, self.plain = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1), rng.random() < 0.5

    def forward(self, x):
        gate = torch.sigmoid(self.b(functional.silu(self.a(x.mean((2, 3), keepdim=True)))))
        return x * gate if self.plain else x.mul(gate.expand_as(x))


class Branches(nn.Module):
    def __init__(self, rng, channels):
        super().__init__()
        self.a, self.b = nn.Conv2d(channels, 4, 1), nn.Conv2d(channels, 4, 3, padding=1)
        self.norm, self.mix = norm(rng, 8), nn.Conv2d(8, channels, 1)

    def forward(self, x):
        return self.mix(self.norm(torch.cat([self.a(x), functional.relu(self.b(x))], 1)))


class Tokens(nn.Module):
    """Products over pixels: a norm of rows, an MLP, perhaps attention."""

    def __init__(self, rng, channels):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(channels, eps=1e-3), nn.Linear(channels, 16), nn.Linear(16, channels)
        self.qkv = nn.Linear(channels, 3 * channels, bias=False) if rng.random() < 0.5 else None
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x):
        n, c, h, w = x.shape
        y = self.norm(x.flatten(2).transpose(1, 2))
        if self.qkv is not None:
            q, k, v = self.qkv(y).chunk(3, -1)
            y = y + torch.softmax(q @ k.transpose(1, 2) * c**-0.5, -1) @ v
        y = self.down(functional.gelu(self.up(y))) * self.scale
        return x + y.transpose(1, 2).reshape(n, c, h, w)


class Shared(nn.Module):
    """One layer twice, and two layers with one weight."""

    def __init__(self, rng, channels):
        super().__init__()
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.b.weight, self.act = self.a.weight, activation(rng)

    def forward(self, x):
        return self.a(self.act(self.b(self.a(x))))


class Computed(nn.Module):
    """Weights that forward computes from parameters."""

    def __init__(self, rng, channels):
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.randn(channels, channels, 1, 1)), nn.Parameter(torch.ones(channels, 1, 1, 1))
        self.standard = rng.random() < 0.5

    def forward(self, x):
        weight = self.weight - self.weight.mean(1, keepdim=True) if self.standard else self.weight
        return functional.conv2d(x, weight * self.gain)


# Code with state


class Stateful(nn.Module):
    """A convolution beside state of Python's or of buffers."""

    def __init__(self, rng, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, rng.choice((1, 3)), padding="same")
        self.start(rng, channels)

    def start(self, rng, channels):
        pass


class Counter(Stateful):
    def start(self, rng, channels):
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.conv(x) * (self.calls % 3 + 1)


class Past(Stateful):
    def start(self, rng, channels):
        self.register_buffer("past", torch.zeros(channels), persistent=rng.random() < 0.7)
        self.in_place = rng.random() < 0.5

    def forward(self, x):
        y = self.conv(x)
        new = y.detach().mean((0, 2, 3)) if len(y) else self.past
        if self.in_place:
            self.past.mul_(0.5).add_(new.to(self.past.dtype))
        else:
            self.past = self.past * 0.5 + new.to(self.past.dtype)
        return y - self.past[:, None, None]


class Noise(Stateful):
    def forward(self, x):
        return self.conv(x + torch.rand(1, dtype=x.dtype)) + 0.1 * torch.randn_like(x)


class Coin(Stateful):
    def forward(self, x):
        return self.conv(x) if random.random() < 0.5 else -x


class Flagged(Stateful):
    """Values that `torch_actions` changes."""

    def start(self, rng, channels):
        self.factor, self.on, self.sizes, self.mode = 1.5, True, [1, 2], "relu"

    def forward(self, x):
        y = self.conv(x) * self.factor + sum(self.sizes)
        return getattr(functional, self.mode)(y if self.on else -y)


class Held(Stateful):
    """Tensors that are neither parameters nor buffers."""

    def start(self, rng, channels):
        self.shift, self.several = torch.ones(channels, 1, 1), [torch.full((1,), 1.5), torch.zeros(1)]

    def forward(self, x):
        return (self.conv(x) + self.shift.to(x.dtype)) * self.several[0].to(x.dtype) + self.several[1].to(x.dtype)


class Remembers(Stateful):
    def start(self, rng, channels):
        self.last, self.seen = None, []

    def forward(self, x):
        y = self.conv(x)
        self.last = y.detach()
        self.seen.append(len(self.seen))
        return y + len(self.seen) % 4


class Depends(Stateful):
    """Control flow on data."""

    def forward(self, x):
        y = self.conv(x)
        return y * 2 if y.sum() > 0 else y - 1


class Measures(Stateful):
    """A number of Python's from data."""

    def forward(self, x):
        y = self.conv(x)
        return y * (1 + float(x.detach().float().abs().max().clamp(max=2))) if x.numel() else y


class InPlace(Stateful):
    """Writes between a layer and its activation, and into its own input."""

    def start(self, rng, channels):
        self.other, self.on_input = nn.Conv2d(channels, channels, 1), rng.random() < 0.3

    def forward(self, x):
        if self.on_input:
            x.mul_(0.5)
        y = self.conv(x)
        z = self.other(y)
        y.mul_(3)
        return functional.relu_(z) + y


class Drops(Stateful):
    def start(self, rng, channels):
        self.drop, self.always = nn.Dropout2d(0.3), rng.random() < 0.3

    def forward(self, x):
        return functional.dropout(self.drop(self.conv(x)), 0.2, self.training or self.always)


class WithoutGradients(Stateful):
    def forward(self, x):
        with torch.no_grad():
            y = self.conv(x)
        return y + x


class Tries(Stateful):
    """Exceptions as control flow."""

    def forward(self, x):
        try:
            if self.conv.bias is None or x.shape[0] == 2:
                raise ValueError("two")
            return self.conv(x)
        except ValueError:
            return self.conv(-x)


STATEFUL = (
    Counter, Past, Noise, Coin, Flagged, Flagged, Held, Remembers, Depends, Measures, InPlace, Drops, WithoutGradients, Tries,
)  # fmt: skip
PLAIN = (Residual, SqueezeExcite, Branches, Tokens, Shared, Computed)


def block(rng, channels):
    """(a module of images, its channels)"""
    pick = rng.random()
    if pick < 0.4:
        return Fused.make(rng, channels)
    if pick < 0.5:
        return rng.choice((nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), activation(rng), norm(rng, channels))), channels
    return rng.choice(STATEFUL if pick < 0.65 else ODD if pick < 0.85 else PLAIN)(rng, channels), channels


class Net(nn.Module):
    """Blocks and a head, with arguments and results of several forms."""

    def __init__(self, seed):
        super().__init__()
        rng = random.Random(seed)
        self.channels = channels = rng.choice((1, 3, 3, 4, 8))
        blocks = []
        for _ in range(rng.randint(1, 3)):
            module, channels = block(rng, channels)
            blocks.append(module)
        self.blocks, self.form = nn.Sequential(*blocks), rng.choice(("tensor",) * 4 + ("dict", "tuple", "none"))
        self.head = nn.Linear(channels, 5) if rng.random() < 0.7 else None
        settle(self, rng)

    def forward(self, x, scale=1.0, extra=None, *, mode="plain"):
        image = x["image"] if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x
        y = self.blocks(image) * scale
        y = y if extra is None else y + extra
        y = -y if mode == "negated" else y
        z = self.head(y.mean((2, 3))) if self.head is not None else y
        return {"tensor": z, "dict": {"y": y, "z": z}, "tuple": (z, y, 3), "none": (z, None, [y])}[self.form]


def settle(model, rng):
    """Statistics that are not those of new norms; perhaps a weight that is computed."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.5)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            module.eps = 1e-3
    layers = [one for one in model.modules() if type(one) in (nn.Conv2d, nn.Linear) and "weight" in one._parameters]
    if layers and rng.random() < 0.15:
        rng.choice((parametrizations.weight_norm, parametrizations.spectral_norm))(rng.choice(layers))


def network(seed):
    """The model of a seed, in inference: of any type, with or without gradients."""
    rng = random.Random(seed + 1)
    torch.manual_seed(seed)
    model = Net(seed)
    if rng.random() < 0.15:
        channels, model = model.channels, model.blocks  # as most models of users: a Sequential
        model.channels = channels
    model.size = rng.choice(((8, 8), (9, 12), (12, 11)))
    model = model.to(rng.choice((torch.float32,) * 12 + (torch.float64, torch.bfloat16)))
    if rng.random() < 0.3 and not any(one.dim() == 5 for one in model.parameters()):
        model = model.to(memory_format=torch.channels_last)
    return model.requires_grad_(rng.random() < 0.7).eval()
