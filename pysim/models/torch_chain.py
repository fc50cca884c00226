# SPDX-License-Identifier: Apache-2.0
"""Fused layers that follow each other in a PyTorch model, as one module: on a GPU one native call, and one piece of memory for what only
they see.

A first call runs layer by layer. Of a later one with the same parameters the launches are kept (`_Launches`), for calls whose inputs lie
alike and whose parameters were not written to since: these look nothing up, allocate what is read outside and one arena (values between
layers and workspaces, placed by when they are needed, as in `pysim.models.buffers`; a small one is kept for the stream), and put all
launches on the stream at once. To look up
what a layer needs takes several times as long as its launch does.

Values have numbers: first what the chain is given, then each layer's result.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from operator import is_ as _is
from typing import Any, NamedTuple

import torch

from pysim.models.buffers import Lifetime, placed
from pysim.models.torch_gpu import Called, on_device_of
from pysim.models.torch_layers import FusedLayer
from pysim.models.torch_precision import settings
from pysim.models.torch_state import Owned, home_of, state_of, transformed
from pysim.once import Recent
from pysim.runtime import cuda
from pysim.runtime.cuda_call import ALIGNED, workspace
from pysim.runtime.cuda_steps import LaunchStep, LaunchSteps, Place

_KEPT = 8  # shapes of inputs that launches are kept for


class Link(NamedTuple):
    """A layer and its arguments: numbers of values, None for what it has from owners or not at all."""

    layer: FusedLayer
    x: int
    parameters: tuple[int | None, ...]
    residual: int | None
    factor: int | None = None


class LayerChain(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """`outputs` are the numbers of the results that others read."""

    def __init__(self, links: Sequence[Link], given: int, outputs: Sequence[int]) -> None:
        super().__init__()
        self._links, self._given, self._outputs = tuple(links), given, tuple(outputs)
        reads = [{one.x, one.residual, one.factor} for one in links]
        last = {number: at for at, numbers in enumerate(reads) for number in numbers}
        own = [number for number in last if number is not None and number >= given and number not in outputs]
        self._done = [[number for number in own if last[number] == at] for at in range(len(links))]  # what nobody reads after a layer
        self._before: list[Any] = []  # the parameters of the last call that looked things up
        self._ready: Recent[tuple[_Launches | Link, ...]] = Recent(_KEPT)

    def forward(self, *given: Any) -> Any:
        values = [*given]
        if not _wants_more():
            for part in self._ready.get((given[self._links[0].x].shape, settings())) or ():
                if isinstance(part, Link):
                    values.append(self._called(part, values)[0])
                elif not part.takes(values) or not part.run(values):
                    break
        if len(values) < self._given + len(self._links):
            self._look_up(values)
        outputs = self._outputs
        return values[outputs[0]] if len(outputs) == 1 else tuple(values[number] for number in outputs)

    __call__ = forward  # past what looks for hooks, which nobody can have put here: a microsecond

    def _called(self, link: Link, values: list[Any]) -> tuple[Any, Called | None, tuple[Any, ...]]:
        parameters = link.layer.parameters_of(tuple(None if at is None else values[at] for at in link.parameters))
        residual, factor = (None if at is None else values[at] for at in (link.residual, link.factor))
        return *link.layer.called(values[link.x], parameters, residual, factor), parameters

    def _look_up(self, values: list[Any]) -> None:
        """Runs the layers whose results are not there yet, and keeps their launches where parameters are the same as in the call before."""
        first, key = len(values) - self._given, (values[self._links[0].x].shape, settings())
        steps: list[_Step] = []
        for at, link in enumerate(self._links[first:], first):
            y, called, parameters = self._called(link, values)
            values.append(y)
            numbers = (link.x, link.residual, self._given + at)  # how they lie is not asked of layers that stay PyTorch's
            x, residual, y = (_Lies.of(values[number]) if called and number is not None else None for number in numbers)
            steps.append(_Step(link, self._given + at, called, x, residual, y, parameters))
            for number in self._done[at]:
                values[number] = None
        launched = [one for step in steps if step.called for one in step.parameters]
        if len(launched) == len(self._before) and all(map(_is, launched, self._before)) and launched:
            self._ready.put(key, _parts(steps, self._outputs) if first == 0 else ())  # else what is kept does not fit: anew, from the start
        elif first == 0 and not launched and not _wants_more() and all(link.layer.stays for link in self._links):
            self._ready.put(key, self._links)
        self._before = launched


def _wants_more() -> bool:
    """Whether more than numbers may be wanted, whatever the operands."""
    return bool(torch.is_grad_enabled() or transformed())


class _Lies(NamedTuple):
    """A tensor as it lies."""

    shape: Any
    stride: tuple[int, ...]
    dtype: Any
    device: Any

    @classmethod
    def of(cls, x: Any) -> "_Lies":
        return cls(x.shape, x.stride(), x.dtype, x.device)

    @property
    def nbytes(self) -> int:
        return int(self.shape.numel() * self.dtype.itemsize)

    @property
    def make(self) -> Callable[[], Any]:
        """What makes uninitialised tensors that lie so."""
        return partial(torch.empty_strided, tuple(self.shape), self.stride, dtype=self.dtype, device=self.device)


class _Step(NamedTuple):
    """A layer's call: the launch that it was, if it can be made again, what it was given and its result."""

    link: Link
    result: int
    called: Called | None
    x: Any
    residual: Any
    y: Any
    parameters: tuple[Any, ...]


def _parts(steps: Sequence[_Step], outputs: Sequence[int]) -> tuple["_Launches | Link", ...]:
    """Launches that follow each other, together, and the layers between them."""
    parts: list[_Launches | Link] = []
    for launched, group in groupby(steps, lambda step: step.called is not None):
        together = list(group)
        last = together[-1].result
        read = {number for step in steps if step.result > last for number in (step.link.x, step.link.residual, step.link.factor)}
        parts += [_Launches(together, read | {*outputs})] if launched else [step.link for step in together]
    return tuple(parts)


class _Launches:
    """Launches of layers as one call; `read` are the numbers of the values that others read."""

    def __init__(self, steps: Sequence[_Step], read: set[int | None]) -> None:
        results = [step.result for step in steps]
        self._operands = _operands(steps)
        self._arguments, self._owned = _sources(steps)
        state = state_of(tuple(one for step in steps for one in step.parameters))
        assert state is not None  # or there was no `Called`
        self._state = state
        memory = {step.result: step.result for step in steps}  # whose memory a result lies in
        for step in steps:
            if _called(step).adds:
                assert step.link.residual is not None
                memory[step.result] = memory.get(step.link.residual, step.link.residual)
        outside = sorted({memory[number] for number in results if number in read and memory[number] in memory})
        self._outer = sorted({number for number, *_ in self._operands})
        self._made = [step.y.make for number in outside for step in steps if step.result == number]
        offsets, self._arena_bytes = placed(_lifetimes(steps, memory, outside), ALIGNED)
        bases = {number: at for at, number in enumerate((*self._outer, *outside), 2)}  # address 0 is 0, address 1 the arena's

        def place(number: int) -> Place:
            root = memory.get(number, number)
            return Place(bases[root]) if root in bases else Place(1, offsets[root])

        def launch(step: _Step) -> LaunchStep:
            called, work = _called(step), place(~step.result) if ~step.result in offsets else Place(0)
            weights = Place(0, called.weights.data_ptr())
            return LaunchStep(called.launch.launch, called.epilogue, place(step.link.x), weights, place(step.result), work)

        self._steps = LaunchSteps([launch(step) for step in steps])
        self._kept = [step.called for step in steps]
        self._results = [bases[memory[number]] - 2 if number in read else None for number in results]
        self._library, self._device = _called(steps[0]).launch.library, steps[0].y.device.index
        self._several_devices = len(cuda.devices()) > 1

    def takes(self, values: Sequence[Any]) -> bool:
        """Whether the operands lie as those did, and the parameters are the same, not written to since."""
        for number, lies, form in self._operands:
            x = values[number]
            if type(x) is not torch.Tensor or x.shape != lies.shape or x.dtype is not lies.dtype or x.device != lies.device:
                return False
            if x.data_ptr() % ALIGNED or x.is_neg() or not x.is_contiguous(memory_format=form):
                return False
        for number, one in self._arguments:
            if values[number] is not one:
                return False
        return self._owned.hold() and self._state.holds()

    def run(self, values: list[Any]) -> bool:
        """Appends the results, None for those that nobody else reads; False where there is no memory, before anything was written."""
        pieces = [values[number] for number in self._outer]
        first = pieces[0]
        with on_device_of(first) if self._several_devices else nullcontext():
            stream = self._library.stream(first)
            try:
                pieces += [make() for make in self._made]
                _owner, arena = workspace(self._arena_bytes, stream, (self._library, first, self._device))
            except torch.OutOfMemoryError:
                return False
            self._steps.run([0, arena, *[one.data_ptr() for one in pieces]], stream)
        values += [None if at is None else pieces[at] for at in self._results]
        return True


def _called(step: _Step) -> Called:
    assert step.called is not None
    return step.called


def _operands(steps: Sequence[_Step]) -> list[tuple[int, _Lies, Any]]:
    """The values that launches find outside, how each lies, and in which form it is read."""
    results, found = {step.result for step in steps}, {}
    for step in steps:
        for number, lies in ((step.link.x, step.x), (step.link.residual, step.residual)):
            if number is not None and number not in results:
                found[number, _called(step).form] = lies
    return [(number, lies, form) for (number, form), lies in found.items()]


def _sources(steps: Sequence[_Step]) -> tuple[list[tuple[int, Any]], Owned]:
    """The parameters that are given, by number, and those that modules own."""
    given, owned = [], []
    for step in steps:
        for number, owner, one in zip(step.link.parameters, step.link.layer.all_owners, step.parameters, strict=True):
            home = home_of(*owner) if owner else None
            if owner and home is not None:
                owned.append((home, owner[1], one))
            elif number is not None:
                given.append((number, one))
    return given, Owned(owned)


def _lifetimes(steps: Sequence[_Step], memory: dict[int, int], outside: Sequence[int]) -> dict[int, Lifetime]:
    """When which memory of the arena is needed: of values that are not read outside by number, and of workspaces by ~number."""
    found: dict[int, Lifetime] = {}
    for at, step in enumerate(steps):
        if nbytes := _called(step).launch.launch.workspace_bytes:
            found[~step.result] = Lifetime(nbytes, at, at)
        root = memory[step.result]
        if root in memory and root not in outside:
            found.setdefault(root, Lifetime(step.y.nbytes, at, at))
        for number in (step.link.x, step.link.residual, step.result):
            if number is not None and memory.get(number) in found:
                found[memory[number]].last = at
    return found
