# SPDX-License-Identifier: Apache-2.0
"""Small models of PyTorch for tests, and what tests ask of them."""

import threading
from importlib import import_module
from types import FunctionType

import pytest
import torch
from torch import nn
from torch.nn import functional

from pysim.torch.capture import rewriting as frontend
from pysim.torch.capture.strides import in_order, with_strides

_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")


def imported(name):
    """A module of torchvision; the test is skipped where it is not here. One that is made for another PyTorch lacks its operators, which no
    model here calls, and only their names are asked for."""
    try:
        return import_module(name)
    except RuntimeError:
        for operator in ("nms", "qnms"):
            _OPERATORS.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except ImportError as error:
        pytest.skip(f"torchvision cannot be imported: {error}")
    try:
        return import_module(name)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision cannot be imported: {error}")


def settled(model):
    """In inference, with statistics that are not those of a new BatchNorm."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
    return model.eval()


def block(channels=8, groups=1):
    return nn.Sequential(nn.Conv2d(3, channels, 3, 2, 1, groups=groups, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


class FrozenNorm(nn.Module):
    """BatchNorm as detection backbones have it: four buffers and arithmetic, no parameter."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.5), ("bias", 0.25), ("running_mean", -0.5), ("running_var", 2.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x):
        weight, bias, mean, var = (one.reshape(1, -1, 1, 1) for one in (self.weight, self.bias, self.running_mean, self.running_var))
        scale = weight * (var + self.eps).rsqrt()
        return x * scale + (bias - mean * scale)


class Residual(nn.Module):
    """Two ways that are added, of which either may be made later; `late` reads the sum's operand afterwards."""

    def __init__(self, late=False, swapped=False):
        super().__init__()
        self.stem, self.late, self.swapped = block(), late, swapped
        self.a, self.b = (nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8)) for _ in range(2))
        self.short = nn.Conv2d(8, 8, 1)

    def forward(self, x):
        x = self.stem(x)
        out = self.b(functional.relu(self.a(x)))
        identity = self.short(x)
        out = identity + out if self.swapped else out + identity
        y = functional.relu(out)
        out2 = self.b(self.a(y))
        out2 += y
        return (functional.relu(out2), identity) if self.late else functional.relu(out2)


class Captured:
    """The one graph that torch.compile captures of a call in inference, as it was or as pysim changed it, called with the parameters and
    buffers that the model has then. `module`: the graph."""

    def __init__(self, model, *inputs):
        def record(module, given):
            self.module = module
            given_to.extend(given)
            return module.forward

        def call(*given):
            return model(*given)

        given_to = []
        own = FunctionType(call.__code__.replace(), call.__globals__, closure=call.__closure__)  # of which nothing is compiled yet
        with torch.no_grad():
            torch.compile(own, backend=record, fullgraph=True, dynamic=False)(*inputs)
        names = {id(one): name for name, one in (*model.named_parameters(), *model.named_buffers())}
        self.model, self.places = model, [names.get(id(one)) or _argument(inputs, one) for one in given_to]

    def rewrite(self, **options):
        """What the frontend tells of it."""
        return frontend.rewrite(self.module, **options)

    def __call__(self, *inputs):
        results = self.module(*[inputs[at] if isinstance(at, int) else _attribute(self.model, at) for at in self.places])
        return results[0] if len(results) == 1 else results


def _argument(inputs, given):
    return next(at for at, one in enumerate(inputs) if one is given)


def _attribute(model, name):
    of, _, last = name.rpartition(".")
    return getattr(model.get_submodule(of), last)


def rewritten(model, *inputs, **options):
    """The captured graph with pysim's layers, and what the frontend tells of it."""
    captured = Captured(model, *inputs)
    return captured, captured.rewrite(**options)


def operators(module):
    """The nodes of a graph that are PyTorch's operators."""
    return [one for one in module.graph.nodes if one.op in ("call_function", "call_method") and one.target not in (in_order, with_strides)]


def graphs_of(optimized):
    """The graphs of an optimized model's calls so far."""
    return [one._call.__self__ for one in optimized._pysim.graphs]


def layers_of(optimized):
    return [layer for graph in optimized._pysim.graphs for layer in graph.layers]


def in_threads(work, count):
    """work(0) to work(count - 1) at once."""
    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


FREES_CAPTURES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 14)  # also those that failed: weak references remain before


def assert_close(found, wanted):
    for y, right in zip(*((one if isinstance(one, tuple) else (one,)) for one in (found, wanted)), strict=True):
        assert y.shape == right.shape and y.dtype == right.dtype
        assert (y - right).abs().max() <= 1e-5 * right.abs().max()
