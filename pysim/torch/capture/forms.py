# SPDX-License-Identifier: Apache-2.0
"""What is known of the values of a captured graph before it runs: `node.meta["form"]`.

A tensor on the CPU has a `Form`, a tuple of values a tuple, a number itself, and no value (a write, absent weights of attention) `ABSENT`.
Sizes that differ between calls are expressions of the sizes of inputs until `known_in` replaces them by those of a call; None stands for
anything else. A tensor on a GPU has an `Operand`, for the choice of a layer.
"""

import operator
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from pysim.network.graph import Tensor

ABSENT = "absent"


class Form(NamedTuple):
    """Shape, type and strides of a tensor."""

    shape: tuple[int, ...]
    dtype: Any
    stride: tuple[int, ...]

    @classmethod
    def of(cls, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(map(cls.of, value))
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu":
            return cls(tuple(map(_number, value.shape)), value.dtype, tuple(map(_number, value.stride())))
        if value is None:
            return ABSENT
        return _number(value) if isinstance(value, torch.SymInt) else None

    @property
    def is_known(self) -> bool:
        return all(type(one) is int for one in (*self.shape, *self.stride))

    @property
    def is_narrow(self) -> bool:
        """Whether a network computes its values as float32, and knows that they are bfloat16 (`Graph.narrow`)."""
        return self.dtype is torch.bfloat16

    @property
    def tensor(self) -> Tensor:
        if self.is_narrow:
            return Tensor(self.shape, np.dtype(np.float32))
        return Tensor(self.shape, np.dtype(str(self.dtype).removeprefix("torch.")))

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes // (2 if self.is_narrow else 1)

    def empty(self) -> Any:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


class Operand(NamedTuple):
    """What a layer's choice looks at of a tensor on a GPU that is known by the capture alone."""

    shape: Any
    dtype: Any
    device: Any
    contiguous: bool
    is_cuda: bool = True

    @classmethod
    def of(cls, example: Any) -> "Operand":
        return cls(example.shape, example.dtype, example.device, example.is_contiguous())

    def is_contiguous(self) -> bool:
        return self.contiguous

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return int(self.shape.numel())


def _number(size: Any) -> Any:
    """A size as a number, or as an expression."""
    return size if type(size) is int else size.node.expr


def forms_in(form: Any) -> tuple[Any, ...]:
    """The form of a value, or of its parts."""
    return form if type(form) is tuple else (form,)


def note_forms(graph: fx.Graph) -> None:
    for node in graph.nodes:
        example = node.meta.get("example_value", _UNKNOWN)
        resolves = getattr(node.target, "__name__", node.target) in ("resolve_neg", "resolve_conj")  # nothing, for the tensors of a trace
        known = example is not _UNKNOWN and not resolves and not any(map(_may_be_lazy, tree_leaves(example)))
        node.meta["form"] = ABSENT if node.target is operator.setitem else Form.of(example) if known else None


_UNKNOWN = object()


def _may_be_lazy(value: Any) -> bool:
    """Whether the numbers in memory may be yet to be conjugated or negated, of which guards and traces tell nothing."""
    return isinstance(value, torch.Tensor) and (value.is_complex() or value.is_neg())


def known_in(form: Any, sizes: Mapping[Any, int]) -> Any:
    """A form where the sizes of inputs are these."""
    if isinstance(form, Form):
        shape, stride = (tuple(known_in(one, sizes) for one in numbers) for numbers in (form.shape, form.stride))
        return Form(shape, form.dtype, stride)
    if isinstance(form, tuple):
        return tuple(known_in(one, sizes) for one in form)
    if form in (None, ABSENT) or type(form) is int:
        return form
    number = form.xreplace(sizes)
    return int(number) if getattr(number, "is_Integer", True) else number


def module_name(node: fx.Node) -> str:
    """The name of the module that calls this operator, as `named_modules` has it; the operator's own name outside of modules."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    name = re.sub(r"\._modules\['([^']*)'\]", r".\1", str(stack[-1][0])) if stack else ""  # as PyTorch 2.9 names them
    return name.rpartition("']")[2].lstrip(".") or name.partition(".")[2] or node.name
