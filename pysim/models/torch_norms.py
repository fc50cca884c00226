# SPDX-License-Identifier: Apache-2.0
"""Norms of a PyTorch model that no convolution stands before, and products in front of one, as modules.

    NormLayer      y = act((x - mean) gamma / sqrt(var + eps) + beta), BatchNorm in inference, of x = the concatenation of its parts
    RowNormLayer   y = (x - mean of x) gamma / sqrt(variance of x + eps) + beta, LayerNorm over channels

On a GPU, where channels lie last, each is one pass over memory (`pysim.runtime.cuda_norm`): parts are read where they lie, and what only
products read has their type from the pass. PyTorch's own operators compute the same everywhere else.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from pysim.models.torch_gpu import Normed, normed
from pysim.models.torch_precision import HALF, settings
from pysim.models.torch_state import Derived, read_owned, settled, wants_more

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # N C H W -> N H W C, and back
_KEPT = 8  # states of parameters
Owners = tuple[tuple[torch.nn.Module, str] | None, ...]  # of parameters: a module, and what they are called there


class _OnePass(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """A norm that may be one pass over memory. Its parameters are read from `owners`: by way of the modules that they lie in each takes as
    long as the operator."""

    owners: Owners
    epsilon: float
    stays = True  # whether PyTorch's operators computed it each time

    def __init__(self) -> None:
        super().__init__()
        self._made = Derived(_KEPT)

    @property
    def all_owners(self) -> Owners:
        return self.owners

    def parameters_of(self, given: Sequence[Any]) -> list[Any]:
        return read_owned(given, self.owners)

    def called(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, Normed | None]:
        """The result by parameters that are given, and, of one pass, what others like it need."""
        done = self._in_one_pass(parts, parameters)
        if done is None:
            return self.own(parts, parameters), None
        self.__dict__["stays"] = False
        return done if settled(parameters, self.owners) else (done[0], None)

    def own(self, parts: Sequence[Any], parameters: Sequence[Any]) -> Any:
        """By PyTorch's operators."""
        raise NotImplementedError

    def _in_one_pass(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, Normed] | None:
        """None where PyTorch's operators stay."""
        raise NotImplementedError


class NormLayer(_OnePass):
    """A BatchNorm and its activation, as in DenseNet."""

    owners: Owners = (None,) * 4
    name = "norm"

    def __init__(self, epsilon: float, activation: Any) -> None:
        super().__init__()
        self.epsilon, self.activation = epsilon, activation

    @property
    def passes(self) -> int:
        """Operators over its input."""
        return 1 + (self.activation is not None)

    def forward(self, x: Any, gamma: Any = None, beta: Any = None, mean: Any = None, var: Any = None, *others: Any) -> Any:
        """`others` are the parts behind x."""
        return self.called((x, *others), self.parameters_of((gamma, beta, mean, var)))[0]

    def own(self, parts: Sequence[Any], parameters: Sequence[Any]) -> Any:
        x = parts[0] if len(parts) == 1 else torch.cat(tuple(parts), 1)
        y = torch.batch_norm(x, *parameters, False, 0.0, self.epsilon, torch.backends.cudnn.enabled)
        return torch.relu_(y) if self.activation == "relu" else activated(y, self.activation)

    def _in_one_pass(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, Normed] | None:
        x, (gamma, beta, mean, var) = parts[0], parameters
        if not x.is_cuda or x.dim() != 4 or self.activation not in (None, "relu") or wants_more(x, (*parts[1:], *parameters)):
            return None
        if not all(
            one.is_contiguous(memory_format=torch.channels_last) and one.dtype == x.dtype and one.device == x.device for one in parts
        ):
            return None

        def make() -> tuple[Any, ...]:
            scale = (torch.ones_like(var) if gamma is None else gamma).double() / torch.sqrt(var.double() + self.epsilon)
            return mean.float().contiguous(), scale.float(), None if beta is None else beta.float().contiguous()

        made = self._made.of(x.device, parameters, make)
        return normed(parts, made, self.activation == "relu", None, x.dtype)


class RowNormLayer(_OnePass):
    """A LayerNorm over the last axis, or of images over their channels. `feeds`: only products read its result."""

    owners: Owners = (None,) * 2

    def __init__(self, epsilon: float, channels: int, over_channels: bool, feeds: bool) -> None:
        super().__init__()
        self.epsilon, self.channels, self.over_channels, self.feeds = epsilon, channels, over_channels, feeds

    def forward(self, x: Any, gamma: Any = None, beta: Any = None) -> Any:
        return self.called((x,), self.parameters_of((gamma, beta)))[0]

    def own(self, parts: Sequence[Any], parameters: Sequence[Any]) -> Any:
        x = parts[0].permute(LAST) if self.over_channels else parts[0]
        y = functional.layer_norm(x, (self.channels,), *parameters, self.epsilon)
        return y.permute(FIRST) if self.over_channels else y

    def _in_one_pass(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, Normed] | None:
        x = parts[0].permute(LAST) if self.over_channels else parts[0]
        if not x.is_cuda or not x.is_contiguous() or x.shape[-1:] != (self.channels,) or wants_more(x, parameters):
            return None
        cast = settings().cast
        result = x.dtype if cast is None else cast if self.feeds and cast in HALF else torch.float32  # as autocast has it, or its readers

        def make() -> tuple[Any, ...]:
            return (None, *(None if one is None else one.float().contiguous() for one in parameters))

        done = normed((x,), self._made.of(x.device, parameters, make), False, self.epsilon, result)
        if done is None or not self.over_channels:
            return done
        y, how = done
        return y.permute(FIRST), how._replace(form=torch.channels_last)


class ProductLayer(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """x times another tensor in front of a convolution, as in squeeze and excitation."""

    name = "product"
    passes = 1

    def ordered(self, x: Any, factor: Any) -> tuple[Any, Any]:
        """What is multiplied by a factor for each image and channel, and that; or the product, and None."""
        for one, other in ((x, factor), (factor, x)):
            if one.dim() == 4 and tuple(other.shape) == (*one.shape[:2], 1, 1) and other.dtype == one.dtype and other.device == one.device:
                return one, other
        return x * factor, None

    def multiplied(self, x: Any, factor: Any) -> tuple[Any, Normed | None]:
        """An image, whose channels lie last, in one pass: PyTorch's product finds each factor anew."""
        done = None
        if x.is_cuda and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not wants_more(x, (factor,)):
            scale = factor.float().contiguous()
            done = normed((x,), (None, scale, None), False, None, x.dtype, True)
            if done and scale.data_ptr() != factor.data_ptr():  # a copy is another launch
                return done[0], None
        return done or (x * factor, None)


_OWN: dict[Any, Callable[[Any], Any]] = {  # of PyTorch
    None: lambda y: y,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "hard_swish": functional.hardswish,
    "sigmoid": torch.sigmoid,
}


def activated(y: Any, activation: Any) -> Any:
    """By PyTorch's operators."""
    return functional.hardtanh(y, *activation[1:]) if isinstance(activation, tuple) else _OWN[activation](y)
