# SPDX-License-Identifier: Apache-2.0
"""Fused layers and norms that follow each other in a PyTorch model, as one module: on a GPU one native call, and one piece of memory for
what only they see.

A first call runs layer by layer. Of a later one with the same parameters the launches are kept (`_Launches`), for calls whose inputs lie
alike and whose parameters were not written to since: these look nothing up, allocate what is read outside and one arena (values between
layers and workspaces, placed by when they are needed, as in `pysim.models.buffers`; a small one is kept for the stream), and put all
launches on the stream at once. To look up what a layer needs takes several times as long as its launch does.

Values have numbers: first what the chain is given, then each layer's result.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import is_ as _is
from typing import Any, NamedTuple

import torch

from pysim.models.buffers import Lifetime, placed
from pysim.models.torch_gpu import Called, Lies, Normed, on_device_of
from pysim.models.torch_layers import FusedLayer
from pysim.models.torch_norms import NormLayer, RowNormLayer
from pysim.models.torch_precision import settings
from pysim.models.torch_state import Owned, home_of, state_of, transformed
from pysim.once import Recent
from pysim.runtime import arrays, cuda
from pysim.runtime.cuda_call import ALIGNED, workspace
from pysim.runtime.cuda_steps import LaunchStep, LaunchSteps, NormStep, Place

_KEPT = 8  # shapes of inputs that launches are kept for


class Link(NamedTuple):
    """A layer and its arguments: numbers of values, None for what it has from owners or not at all. `others` are the parts of a
    concatenation behind x."""

    layer: FusedLayer | NormLayer | RowNormLayer
    x: int
    parameters: tuple[int | None, ...]
    residual: int | None = None
    factor: int | None = None
    others: tuple[int, ...] = ()

    @property
    def reads(self) -> list[int]:
        """All but parameters."""
        return [one for one in (self.x, *self.others, self.residual, self.factor) if one is not None]


class LayerChain(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """`outputs` are the numbers of the results that others read."""

    def __init__(self, links: Sequence[Link], given: int, outputs: Sequence[int]) -> None:
        super().__init__()
        self._links, self._given, self._outputs = tuple(links), given, tuple(outputs)
        last = {number: at for at, one in enumerate(links) for number in one.reads}
        own = [number for number in last if number >= given and number not in outputs]
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

    def _called(self, link: Link, values: list[Any]) -> tuple[Any, Called | Normed | None, tuple[Any, ...]]:
        layer, given = link.layer, tuple(None if at is None else values[at] for at in link.parameters)
        if not isinstance(layer, FusedLayer):
            parameters = tuple(layer.parameters_of(given))
            return *layer.called([values[at] for at in (link.x, *link.others)], parameters), parameters
        parameters = layer.parameters_of(given)
        residual, factor = (None if at is None else values[at] for at in (link.residual, link.factor))
        return *layer.called(values[link.x], parameters, residual, factor), parameters

    def _look_up(self, values: list[Any]) -> None:
        """Runs the layers whose results are not there yet, and keeps their launches where parameters are the same as in the call before."""
        first, key = len(values) - self._given, (values[self._links[0].x].shape, settings())
        steps: list[_Step] = []
        for at, link in enumerate(self._links[first:], first):
            y, called, parameters = self._called(link, values)
            values.append(y)
            lie = {number: Lies.of(values[number]) for number in (*link.reads, self._given + at)} if called else {}
            steps.append(_Step(link, self._given + at, called, lie, parameters))
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


class _Step(NamedTuple):
    """A layer's call: what it was on the device, if that can be done again, and how the values that it read and made lay."""

    link: Link
    result: int
    called: Called | Normed | None
    lie: dict[int, Lies]
    parameters: tuple[Any, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of what is normed or multiplied."""
        link, turned = self.link, isinstance(self.called, Called) and self.called.turned
        return (link.factor,) if turned and link.factor is not None else (link.x, *link.others)

    @property
    def factor(self) -> int | None:
        return next((one for one in (self.link.x, self.link.factor) if one not in self.parts), None)

    @property
    def before(self) -> Normed | None:
        return self.called.before if isinstance(self.called, Called) else None

    @property
    def workspace_bytes(self) -> int:
        return int(self.called.launch.launch.workspace_bytes) if isinstance(self.called, Called) else 0

    @property
    def forms(self) -> list[tuple[int, Any]]:
        """The values that it reads, and the form in which each lies."""
        assert self.called is not None
        form = (self.before or self.called).form
        read = [(one, form) for one in self.parts]
        read += [(self.factor, torch.contiguous_format)] if self.factor is not None else []
        return [*read, (self.link.residual, self.called.form)] if self.link.residual is not None else read


def _parts(steps: Sequence[_Step], outputs: Sequence[int]) -> tuple["_Launches | Link", ...]:
    """Launches that follow each other, together, and the layers between them."""
    parts: list[_Launches | Link] = []
    for launched, group in groupby(steps, lambda step: step.called is not None):
        together = list(group)
        read = {number for step in steps if step.result > together[-1].result for number in step.link.reads}
        parts += [_Launches(together, read | {*outputs})] if launched else [step.link for step in together]
    return tuple(parts)


class _Launches:
    """Launches of layers as one call; `read` are the numbers of the values that others read."""

    def __init__(self, steps: Sequence[_Step], read: set[int]) -> None:
        results = [step.result for step in steps]
        self._operands = _operands(steps)
        self._arguments, self._owned = _sources(steps)
        state = state_of(tuple(one for step in steps for one in step.parameters))
        assert state is not None  # or nothing was said of the call
        self._state = state
        memory = {step.result: step.result for step in steps}  # whose memory a result lies in
        for step in steps:
            if isinstance(step.called, Called) and step.called.adds:
                assert step.link.residual is not None
                memory[step.result] = memory.get(step.link.residual, step.link.residual)
        outside = sorted({memory[number] for number in results if number in read and memory[number] in memory})
        self._outer = sorted({number for number, *_ in self._operands})
        self._made = [step.lie[number].make for number in outside for step in steps if step.result == number]
        offsets, self._arena_bytes = placed(_lifetimes(steps, memory, outside), ALIGNED)
        bases = {number: at for at, number in enumerate((*self._outer, *outside), 2)}  # address 0 is 0, address 1 the arena's
        nowhere = Place(0)

        def place(number: int) -> Place:
            root = memory.get(number, number)
            return Place(bases[root]) if root in bases else Place(1, offsets["value", root])

        def inside(kind: str, step: _Step) -> Place:
            return Place(1, offsets[kind, step.result]) if (kind, step.result) in offsets else nowhere

        def norm(step: _Step, how: Normed, result: Place) -> NormStep:
            scale = place(step.factor) if how.by_factor and step.factor is not None else nowhere
            return NormStep(how.launch, tuple(map(place, step.parts)), result, scale)

        def launches(step: _Step) -> list[LaunchStep | NormStep]:
            called, before, result = step.called, step.before, place(step.result)
            if isinstance(called, Normed):
                return [norm(step, called, result)]
            assert called is not None
            weights, work = Place(0, called.weights.data_ptr()), inside("workspace", step)
            image = inside("image", step) if before else place(step.parts[0])
            last = LaunchStep(called.launch.launch, called.epilogue, image, weights, result, work)
            return [norm(step, before, image), last] if before else [last]

        self._steps = LaunchSteps([one for step in steps for one in launches(step)])
        self._kept = [step.called for step in steps]
        self._results = [bases[memory[number]] - 2 if number in read else None for number in results]
        self._library, self._device = arrays.library_of(torch.Tensor), steps[0].lie[results[0]].device.index
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


def _operands(steps: Sequence[_Step]) -> list[tuple[int, Lies, Any]]:
    """The values that launches find outside, how each lies, and in which form it is read."""
    results = {step.result for step in steps}
    found = {(number, form): step.lie[number] for step in steps for number, form in step.forms if number not in results}
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


def _lifetimes(steps: Sequence[_Step], memory: dict[int, int], outside: Sequence[int]) -> dict[tuple[str, int], Lifetime]:
    """When which memory of the arena is needed: of each "value" that is not read outside, by number, and of a step's "workspace" and the
    "image" that what comes first makes, by its result's."""
    found: dict[tuple[str, int], Lifetime] = {}
    for at, step in enumerate(steps):
        own = {"workspace": step.workspace_bytes, "image": step.before.result.nbytes if step.before else 0}
        found |= {(kind, step.result): Lifetime(nbytes, at, at) for kind, nbytes in own.items() if nbytes}
        root = memory[step.result]
        if root in memory and root not in outside:
            found.setdefault(("value", root), Lifetime(step.lie[step.result].nbytes, at, at))
        for number in (*step.link.reads, step.result):
            if one := found.get(("value", memory.get(number, number))):
                one.last = at
    return found
