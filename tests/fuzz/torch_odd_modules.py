# SPDX-License-Identifier: Apache-2.0
"""Modules that are written as few are: weights that forward writes or computes, caches, loops on data, NumPy, own calls and attributes."""

import enum
import functools
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Odd(nn.Module):
    """A convolution beside something odd."""

    def __init__(self, rng, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, rng.choice((1, 3)), padding="same", bias=rng.random() < 0.7)
        self.start(rng, channels)

    def start(self, rng, channels):
        pass


# Weights


class Decays(Odd):
    """Each call writes to its weight."""

    def start(self, rng, channels):
        self.by_data = rng.random() < 0.5

    def forward(self, x):
        if self.by_data:
            self.conv.weight.data.mul_(0.9)
        else:
            with torch.no_grad():
                self.conv.weight.clamp_(-0.4, 0.4).add_(0.01)
        return self.conv(x)


class Averaged(Odd):
    """In inference another weight, an average that calls move, stands in the parameter's place."""

    def start(self, rng, channels):
        self.register_buffer("shadow", self.conv.weight.detach().clone())

    def forward(self, x):
        if self.training:
            self.shadow.lerp_(self.conv.weight.detach().to(self.shadow.dtype), 0.25)
            return self.conv(x)
        kept, self.conv.weight.data = self.conv.weight.data, self.shadow
        try:
            return self.conv(x)
        finally:
            self.conv.weight.data = kept


class Modulated(Odd):
    """A weight for each image, which that image makes: StyleGAN's."""

    def start(self, rng, channels):
        self.style = nn.Linear(channels, channels)

    def forward(self, x):
        n, c, h, w = x.shape
        weight = self.conv.weight[None] * self.style(x.mean((2, 3)))[:, None, :, None, None]
        weight = weight * (weight.square().sum((2, 3, 4), keepdim=True) + 1e-2).rsqrt()
        return functional.conv2d(x.reshape(1, n * c, h, w), weight.flatten(0, 1), padding="same", groups=n).view(n, c, h, w)


class Property(Odd):
    def start(self, rng, channels):
        self.left, self.right = nn.Parameter(torch.randn(channels, 2)), nn.Parameter(torch.randn(2, channels))

    @property
    def weight(self):
        return self.left @ self.right + torch.eye(len(self.left), dtype=self.left.dtype)

    def forward(self, x):
        return self.conv(functional.conv2d(x, self.weight[:, :, None, None]))


class Tied(Odd):
    """A product and its transpose."""

    def start(self, rng, channels):
        self.up = nn.Linear(channels, 6)

    def forward(self, x):
        y = functional.relu(self.up(x.movedim(1, -1)))
        return self.conv((y @ self.up.weight).movedim(-1, 1))


class Pieces(Odd):
    def start(self, rng, channels):
        self.gains = nn.ParameterList(torch.randn(channels, 1, 1) for _ in range(2))
        self.more = nn.ParameterDict({"b": nn.Parameter(torch.ones(1)), "a": nn.Parameter(torch.full((1,), 2.0))})

    def forward(self, x):
        return sum(self.conv(x) * gain for gain in self.gains) * sum(self.more.values())


class OldNorm(Odd):
    """A weight that a hook computes before each call."""

    def start(self, rng, channels):
        with torch.no_grad():  # else the weight is a result that gradients flow through, and cannot be copied
            self.conv = torch.nn.utils.weight_norm(self.conv, dim=rng.choice((0, None)))

    def forward(self, x):
        return self.conv(x)


class Rounded(Odd):
    """Weights and activations of eight bits, as trained for quantisation."""

    def forward(self, x):
        weight = torch.fake_quantize_per_tensor_affine(self.conv.weight.float(), 0.05, 0, -128, 127).to(x.dtype)
        y = functional.conv2d(x, weight, self.conv.bias, padding="same")
        return y + (torch.round(y.detach().float() * 4).to(y.dtype) / 4 - y.detach()) if self.training else y


# State


class Caches(Odd):
    """What depends on the size is computed by the first call of each."""

    def start(self, rng, channels):
        self.cache = {}

    def forward(self, x):
        key = tuple(x.shape[2:])
        if key not in self.cache:
            self.cache[key] = torch.linspace(0, 1, key[0] * key[1]).view(key)
        return self.conv(x) + self.cache[key].to(x.dtype)


class Grows(Odd):
    """A buffer that the first call makes."""

    def forward(self, x):
        y = self.conv(x)
        if "mean" not in self._buffers:
            self.register_buffer("mean", y.detach().mean((0, 2, 3)))
        return y - self.mean[:, None, None].to(y.dtype)


class Queued(Odd):
    def start(self, rng, channels):
        self.steps = deque([1.0, 2.0, 3.0])

    def forward(self, x):
        self.steps.rotate(1)
        return self.conv(x) * self.steps[0]


class Alternates(Odd):
    """One layer and another in turn, by its name."""

    def start(self, rng, channels):
        self.other, self.at = nn.Conv2d(channels, channels, 1), 0

    def forward(self, x):
        self.at = 1 - self.at
        return getattr(self, ("conv", "other")[self.at])(x)


class Writes(Odd):
    """Into a buffer that is the result's memory."""

    def start(self, rng, channels):
        self.register_buffer("kept", torch.zeros(0), persistent=False)

    def forward(self, x):
        y = self.conv(x)
        if self.kept.shape != y.shape or self.kept.dtype != y.dtype or y.requires_grad:
            self.kept = torch.empty_like(y)
        self.kept.copy_(y.detach())
        self.kept[:, :1] += 1
        return self.kept * 1 if y.requires_grad else self.kept.clone()


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLED = 2


@dataclass
class Settings:
    gain: float = 1.5
    mode: Mode = Mode.PLAIN
    steps: list = field(default_factory=lambda: [1, 2])

    def __eq__(self, other):
        return vars(self) == vars(other)


class Configured(Odd):
    """By an object, which the call changes."""

    def start(self, rng, channels):
        self.settings = Settings()

    def forward(self, x):
        y = self.conv(x) * self.settings.gain
        y = y * 2 if self.settings.mode is Mode.DOUBLED else y
        self.settings.mode = Mode.DOUBLED if self.settings.mode is Mode.PLAIN else Mode.PLAIN
        return y + len(self.settings.steps)


# Control flow


class Halves(Odd):
    """Until it is small."""

    def forward(self, x):
        y = self.conv(x)
        for _ in range(20):
            if not y.numel() or not bool(y.detach().abs().max() > 1.5):
                break
            y = y / 2
        return y


class EachImage(Odd):
    """A batch image by image, without its dimension."""

    def forward(self, x):
        return torch.stack([self.conv(image) for image in x]) if len(x) else x


class Chosen(Odd):
    """The images that a sum chooses: how many depends on data."""

    def forward(self, x):
        keep = x.detach().sum((1, 2, 3)) > 0
        y = x.clone()
        y[keep] = self.conv(x[keep])
        return y


class Generates(Odd):
    def parts(self, y):
        for at in range(3):
            yield y * at

    def forward(self, x):
        return sum(self.parts(self.conv(x)))


class Named(Odd):
    def start(self, rng, channels):
        self.layers = nn.ModuleDict({"b": nn.Conv2d(channels, channels, 1), "a": nn.Hardtanh()})
        self.order = ["a", "b"]

    def forward(self, x):
        y = self.conv(x)
        for name in self.order:
            y = self.layers[name](y)
        self.order.reverse()
        return y


def leaky(x, slope=0.3):
    return functional.leaky_relu(x, slope)


class Functions(Odd):
    """Functions in attributes, others in each call."""

    def start(self, rng, channels):
        self.of = [torch.relu, leaky, torch.neg]

    def forward(self, x):
        self.of.append(self.of.pop(0))
        return functools.reduce(lambda y, function: function(y), self.of, functools.partial(torch.mul, 2)(self.conv(x)))


# Calls and attributes of its own


class OwnCall(Odd):
    def __call__(self, *given, **named):
        return super().__call__(*given, **named) * 2

    def forward(self, x):
        return self.conv(x)


class Delegates(Odd):
    """What it lacks is its convolution's."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "conv" or name.startswith("__"):
                raise
            return getattr(self.conv, name)

    def forward(self, x):
        return functional.conv2d(x, self.weight, self.bias, self.stride, padding="same")


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient


class OwnGradient(Odd):
    def forward(self, x):
        return Squared.apply(self.conv(x)) * 0.2


class Checkpointed(Odd):
    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)

    def body(self, x):
        return functional.silu(self.conv(x))


@contextmanager
def doubling(module):
    module.gain *= 2
    try:
        yield
    finally:
        module.gain /= 2


class InContext(Odd):
    def start(self, rng, channels):
        self.gain = 1.0

    def forward(self, x):
        with doubling(self):
            return self.conv(x) * self.gain


class InModes(Odd):
    """Of types and of gradients, inside of forward."""

    def start(self, rng, channels):
        self.autocast = rng.random() < 0.5

    def forward(self, x):
        if self.autocast:
            with torch.autocast("cpu", torch.bfloat16):
                return self.conv(x).to(x.dtype)
        with torch.inference_mode():
            y = self.conv(x)
        return x + y.clone()


class ByNumpy(Odd):
    def forward(self, x):
        y = self.conv(x)
        return y + torch.from_numpy(y.detach().double().numpy().mean(axis=(2, 3), keepdims=True)).to(y.dtype) if y.numel() else y


# Operators


class Slices(Odd):
    def forward(self, x):
        y = self.conv(x)
        y[:, ::2] += 1
        y[..., 0] = x[..., -1]
        return torch.cat([y[..., 1:], y[..., :1]], -1)


class Masks(Odd):
    def forward(self, x):
        y = self.conv(x)
        y = torch.where(y > 1, y * 0.5, y)
        y[y < -1] = -1
        return y.masked_fill(x.detach() > 1, 0.25)


class Sorts(Odd):
    def forward(self, x):
        y = self.conv(x).flatten(2)
        order = y.detach().argsort(dim=-1, stable=True)
        return torch.gather(y, 2, order).view(x.shape) + y.detach().amax(-1)[..., None, None]


class Embeds(Odd):
    def start(self, rng, channels):
        self.table = nn.Embedding(channels, channels)

    def forward(self, x):
        return self.conv(x) + self.table(x.detach().argmax(1)).movedim(-1, 1)


class Resizes(Odd):
    def start(self, rng, channels):
        self.mode = rng.choice(("nearest", "bilinear", "bicubic"))

    def forward(self, x):
        corners = None if self.mode == "nearest" else False
        y = functional.interpolate(x, scale_factor=2, mode=self.mode, align_corners=corners)
        return functional.interpolate(self.conv(y), size=x.shape[2:], mode=self.mode, align_corners=corners)


class Unfolds(Odd):
    def forward(self, x):
        y = functional.unfold(self.conv(x), 3, padding=1)
        return functional.fold(functional.relu(y), x.shape[2:], 3, padding=1)


class Transposes(Odd):
    def start(self, rng, channels):
        self.up = nn.ConvTranspose2d(channels, channels, 2, 2, groups=rng.choice((1, channels)))
        self.down = nn.Conv2d(channels, channels, 2, 2)

    def forward(self, x):
        return self.down(functional.relu(self.up(self.conv(x))))


class OtherRanks(Odd):
    """Sequences and volumes."""

    def start(self, rng, channels):
        self.line, self.volume = nn.Conv1d(channels, channels, 3, padding=1), nn.Conv3d(channels, channels, 3, padding=1)

    def forward(self, x):
        y = self.line(self.conv(x).flatten(2)).view(x.shape)
        return self.volume(torch.stack([x, y], 2)).mean(2)


class Recurs(Odd):
    def start(self, rng, channels):
        self.cells = rng.choice((nn.GRU, nn.LSTM))(channels, channels, batch_first=True, bidirectional=rng.random() < 0.3)

    def forward(self, x):
        y, _ = self.cells(self.conv(x).flatten(2).transpose(1, 2)[:, :5])
        return x + y[..., : x.shape[1]].mean(1)[..., None, None]


class Attends(Odd):
    def start(self, rng, channels):
        self.attention = nn.MultiheadAttention(channels, 1, batch_first=True)

    def forward(self, x):
        rows = self.conv(x).flatten(2).transpose(1, 2)
        y, _ = self.attention(rows, rows, rows, need_weights=False)
        return x + y.transpose(1, 2).reshape(x.shape)


class Spectral(Odd):
    def forward(self, x):
        y = self.conv(x).float()
        return torch.fft.irfft2(torch.fft.rfft2(y) * 0.5, s=y.shape[2:]).to(x.dtype)


class Indexed(Odd):
    """Sums by einsum, flips, rolls, numbers on diagonals."""

    def start(self, rng, channels):
        self.mix = nn.Parameter(torch.randn(channels, channels))

    def forward(self, x):
        y = torch.einsum("nchw,dc->ndhw", self.conv(x), self.mix)
        y = torch.roll(y.flip(3), 1, 2) + torch.tril(y)
        return y - y.detach().cumsum(1)


class Strides(Odd):
    """Reads those of a computed value."""

    def start(self, rng, channels):
        self.mix = nn.Parameter(torch.randn(channels, channels))

    def forward(self, x):
        y = torch.roll(torch.einsum("nchw,dc->ndhw", self.conv(x), self.mix), 1, 2)
        return y.as_strided(y.shape, y.stride()) * 2


ODD = (
    Decays, Averaged, Modulated, Property, Tied, Pieces, OldNorm, Rounded, Caches, Grows, Queued, Alternates, Writes, Configured,
    Halves, EachImage, Chosen, Generates, Named, Functions, OwnCall, Delegates, OwnGradient, Checkpointed, InContext, InModes, ByNumpy,
    Slices, Masks, Sorts, Embeds, Resizes, Unfolds, Transposes, OtherRanks, Recurs, Attends, Spectral, Indexed, Strides,
)  # fmt: skip
