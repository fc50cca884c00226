# SPDX-License-Identifier: Apache-2.0
"""Operators of a PyTorch model on the input of a layer, as modules: norms that no convolution precedes, and multiplications by a factor.

    NormLayer      y = act((x - mean) gamma / sqrt(var + eps) + beta), BatchNorm in inference; x is the concatenation of its parts
    RowNormLayer   y = (x - mean of x) gamma / sqrt(variance of x + eps) + beta, LayerNorm over channels
    FactorLayer    y = x times a factor for each image and channel

On a GPU, on channels-last tensors, each is one pass over memory (`pysim.runtime.cuda_norm`). The pass reads the parts of a concatenation
without joining them, and writes the type of the products that read its result. Everywhere else PyTorch's own operators compute the same.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from pysim.errors import OperandError
from pysim.torch.layers.gpu_launch import NormRecord, run_norm
from pysim.torch.parameters import ParameterCache, changes_are_seen, needs_pytorch
from pysim.torch.precision import HALF, settings

TO_NHWC, TO_NCHW = (0, 2, 3, 1), (0, 3, 1, 2)  # permutations of axes
_CACHE_SIZE = 8  # devices
VECTOR_BYTES = 16  # of a load of the kernels


class _OnePassNorm(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """A norm that may run as one pass over memory."""

    parameter_count: int
    epsilon: float
    always_pytorch = True  # no call has used the kernel so far
    never_pytorch = False  # accuracy reproducible: PyTorch rounds otherwise

    def __init__(self) -> None:
        super().__init__()
        self.derived = ParameterCache(_CACHE_SIZE)

    def run(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, NormRecord | None]:
        """The result; with a record if the kernel ran and later calls may repeat its launch."""
        if self.never_pytorch:
            parts = [self.dense(part) for part in parts]
        done = self._by_kernel(parts, parameters)
        if done is None and self.never_pytorch:
            raise OperandError(f"accuracy reproducible: no kernel computes a norm of {parts[0].dtype} and shape {tuple(parts[0].shape)}")
        if done is None:
            return self.by_pytorch(parts, parameters), None
        self.__dict__["always_pytorch"] = False
        return done if changes_are_seen(parameters) else (done[0], None)

    def dense(self, x: Any) -> Any:
        """An operand as the kernel reads it."""
        return x.contiguous(memory_format=torch.channels_last)

    def by_pytorch(self, parts: Sequence[Any], parameters: Sequence[Any]) -> Any:
        raise NotImplementedError

    def _by_kernel(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, NormRecord] | None:
        """None if the kernel cannot run."""
        raise NotImplementedError


class NormLayer(_OnePassNorm):
    """A BatchNorm and its activation, as in DenseNet."""

    parameter_count = 4
    name = "norm"

    def __init__(self, epsilon: float, activation: Any) -> None:
        super().__init__()
        self.epsilon, self.activation = epsilon, activation

    @property
    def passes(self) -> int:
        """PyTorch's operators that it replaces."""
        return 1 + (self.activation is not None)

    def forward(self, x: Any, gamma: Any = None, beta: Any = None, mean: Any = None, var: Any = None, *others: Any) -> Any:
        """`others`: further parts of the concatenation that begins with x."""
        return self.run((x, *others), (gamma, beta, mean, var))[0]

    def by_pytorch(self, parts: Sequence[Any], parameters: Sequence[Any]) -> Any:
        x = parts[0] if len(parts) == 1 else torch.cat(tuple(parts), 1)
        y = torch.batch_norm(x, *parameters, False, 0.0, self.epsilon, torch.backends.cudnn.enabled)
        return torch.relu_(y) if self.activation == "relu" else apply_activation(y, self.activation)

    def _by_kernel(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, NormRecord] | None:
        x, (gamma, beta, mean, var) = parts[0], parameters
        if not x.is_cuda or x.dim() != 4 or self.activation not in (None, "relu") or needs_pytorch(x, (*parts[1:], *parameters)):
            return None
        if not all(
            part.is_contiguous(memory_format=torch.channels_last) and part.dtype == x.dtype and part.device == x.device for part in parts
        ):
            return None

        def constants() -> tuple[Any, ...]:
            scale = (torch.ones_like(var) if gamma is None else gamma).double() / torch.sqrt(var.double() + self.epsilon)
            return mean.float().contiguous(), scale.float(), None if beta is None else beta.float().contiguous()

        return run_norm(parts, self.derived.get(x.device, parameters, constants), self.activation == "relu", None, x.dtype)


class RowNormLayer(_OnePassNorm):
    """A LayerNorm over the last axis; `over_channels`: over the channels of NCHW images. `feeds_products`: only products read its
    result."""

    parameter_count = 2

    def __init__(self, epsilon: float, channels: int, over_channels: bool, feeds_products: bool) -> None:
        super().__init__()
        self.epsilon, self.channels, self.over_channels, self.feeds_products = epsilon, channels, over_channels, feeds_products

    def forward(self, x: Any, gamma: Any = None, beta: Any = None) -> Any:
        return self.run((x,), (gamma, beta))[0]

    def run(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, NormRecord | None]:
        """Under accuracy reproducible each launch is of operands that are looked at."""
        done = super().run(parts, parameters)
        return (done[0], None) if self.never_pytorch else done

    def dense(self, x: Any) -> Any:
        """At a multiple of 16 bytes, too: the kernel adds single elements in another order."""
        x = super().dense(x) if self.over_channels else x.contiguous()
        return x.clone() if x.data_ptr() % VECTOR_BYTES else x

    def by_pytorch(self, parts: Sequence[Any], parameters: Sequence[Any]) -> Any:
        x = parts[0].permute(TO_NHWC) if self.over_channels else parts[0]
        y = functional.layer_norm(x, (self.channels,), *parameters, self.epsilon)
        return y.permute(TO_NCHW) if self.over_channels else y

    def _by_kernel(self, parts: Sequence[Any], parameters: Sequence[Any]) -> tuple[Any, NormRecord] | None:
        x = parts[0].permute(TO_NHWC) if self.over_channels else parts[0]
        if not x.is_cuda or not x.is_contiguous() or x.shape[-1:] != (self.channels,) or needs_pytorch(x, parameters):
            return None
        cast = settings().cast
        result = x.dtype
        if cast is not None:  # autocast makes a norm float32; products would cast that to `cast`
            result = cast if self.feeds_products and cast in HALF else torch.float32

        def constants() -> tuple[Any, ...]:
            return (None, *(None if tensor is None else tensor.float().contiguous() for tensor in parameters))

        done = run_norm((x,), self.derived.get(x.device, parameters, constants), False, self.epsilon, result)
        if done is None or not self.over_channels:
            return done
        y, record = done
        return y.permute(TO_NCHW), record._replace(memory_format=torch.channels_last)


class FactorLayer(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """The input of a convolution times another tensor, as in squeeze and excitation."""

    name = "product"
    passes = 1

    def image_and_factor(self, x: Any, other: Any) -> tuple[Any, Any]:
        """The operand that is an image and the one that has a factor for each image and channel; else (the product, None)."""
        for image, factor in ((x, other), (other, x)):
            fits = image.dim() == 4 and tuple(factor.shape) == (*image.shape[:2], 1, 1)
            if fits and factor.dtype == image.dtype and factor.device == image.device:
                return image, factor
        return x * other, None

    def apply_factor(self, x: Any, factor: Any) -> tuple[Any, NormRecord | None]:
        """Channels-last images in one pass: PyTorch's product loads the factor once for each element."""
        done = None
        if x.is_cuda and x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last) and not needs_pytorch(x, (factor,)):
            scale = factor.float().contiguous()
            done = run_norm((x,), (None, scale, None), False, None, x.dtype, True)
            if done and scale.data_ptr() != factor.data_ptr():  # copying the factor was another launch, which the record lacks
                return done[0], None
        return done or (x * factor, None)


_ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {
    None: lambda y: y,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "hard_swish": functional.hardswish,
    "sigmoid": torch.sigmoid,
}
# of those with two numbers
_WITH_NUMBERS: dict[str, Callable[[Any, float, float], Any]] = {
    "clamp": functional.hardtanh,
    "leaky_relu": lambda y, slope, _one: functional.leaky_relu(y, slope),
}


def apply_activation(y: Any, activation: Any) -> Any:
    """The activation of y by PyTorch's operators."""
    if isinstance(activation, tuple):
        return _WITH_NUMBERS[activation[0]](y, *activation[1:])
    return _ACTIVATIONS[activation](y)
