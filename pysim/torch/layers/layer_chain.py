# SPDX-License-Identifier: Apache-2.0
"""Consecutive fused layers and norms of a PyTorch model as one module: on a GPU one native call and one arena for the values between them.

The first call runs layer by layer. The second call with the same parameters keeps its launches (`_LaunchGroup`). Later calls repeat them if
their inputs have the same layouts and no parameter changed: such a call looks nothing up, allocates the results and one arena, and enqueues
all launches at once. The arena holds the values between layers and the workspaces, placed by their lifetimes as in
`pysim.network.arena`; a small arena is kept for the stream. Looking up a layer's launch takes several times as long as launching it.

Values are numbered: the inputs of the chain first, then each layer's result.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import is_
from typing import Any, NamedTuple

import torch

from pysim.caches import LruCache
from pysim.network.arena import Lifetime, assign_offsets
from pysim.runtime import arrays, cuda
from pysim.runtime.arrays import ALIGNMENT_BYTES
from pysim.runtime.cuda_call import workspace
from pysim.runtime.cuda_steps import LaunchStep, LaunchSteps, NormStep, Place
from pysim.torch.layers.fused_layer import FusedLayer
from pysim.torch.layers.gpu_launch import LaunchRecord, NormRecord, TensorLayout, on_device_of
from pysim.torch.layers.norm_layers import NormLayer, RowNormLayer
from pysim.torch.parameters import EPOCH, is_traced, versions_of
from pysim.torch.precision import settings

_CACHE_SIZE = 32  # shapes of inputs, and models that share the chain, whose launches it keeps


class Link(NamedTuple):
    """A layer and the numbers of its arguments; None for a parameter that it does not have. `others`: further parts of the concatenation
    that begins with x."""

    layer: FusedLayer | NormLayer | RowNormLayer
    x: int
    parameters: tuple[int | None, ...]
    residual: int | None = None
    factor: int | None = None
    others: tuple[int, ...] = ()

    @property
    def reads(self) -> list[int]:
        """The numbers of all arguments but parameters."""
        return [number for number in (self.x, *self.others, self.residual, self.factor) if number is not None]


class LayerChain(torch.nn.Module):  # type: ignore[misc]  # PyTorch need not be here
    """`outputs`: the numbers of the results that the rest of the model reads."""

    def __init__(self, links: Sequence[Link], input_count: int, outputs: Sequence[int]) -> None:
        super().__init__()
        self.links, self.input_count, self.outputs = tuple(links), input_count, tuple(outputs)
        last_reader = {number: at for at, link in enumerate(links) for number in link.reads}
        inner = [number for number in last_reader if number >= input_count and number not in outputs]
        self._dead_after = [[number for number in inner if last_reader[number] == at] for at in range(len(links))]
        self._last_parameters: LruCache[list[Any]] = LruCache(_CACHE_SIZE)  # of the last call of each model that ran layer by layer
        self._known: dict[int, tuple[Any, tuple[Any, ...]]] = {}  # link -> epoch and parameters then: collecting them takes a microsecond
        self._plans: LruCache[tuple[_LaunchGroup | Link, ...]] = LruCache(_CACHE_SIZE)

    def forward(self, *inputs: Any) -> Any:
        values, inference = [*inputs], not _needs_pytorch()
        if inference:
            for part in self._plans.get(self._key(values)) or ():
                if isinstance(part, Link):
                    values.append(self._call_layer(part, values, inference)[0])
                elif not part.applies_to(values) or not part.run(values):
                    break
        if len(values) < self.input_count + len(self.links):
            self._run_layers(values, inference)
        outputs = self.outputs
        return values[outputs[0]] if len(outputs) == 1 else tuple(values[number] for number in outputs)

    __call__ = forward  # skips nn.Module's search for hooks, which takes a microsecond; none can be registered here

    def _key(self, values: list[Any]) -> tuple[Any, ...]:
        """Layers of one structure may share a chain, so its first parameter is part of the key."""
        first = self.links[0]
        number = first.parameters[0]
        return values[first.x].shape, None if number is None else id(values[number]), settings()

    def _parameters_of(self, link: Link, values: list[Any]) -> tuple[Any, ...]:
        epoch = EPOCH.now if link.layer.derived.watched else None
        known = self._known.get(id(link))
        if known is None or epoch is None or known[0] is not epoch:
            known = self._known[id(link)] = epoch, tuple(None if at is None else values[at] for at in link.parameters)
        return known[1]

    def _call_layer(self, link: Link, values: list[Any], inference: bool) -> tuple[Any, LaunchRecord | NormRecord | None, tuple[Any, ...]]:
        layer, parameters = link.layer, self._parameters_of(link, values)
        if not isinstance(layer, FusedLayer):
            return *layer.run([values[at] for at in (link.x, *link.others)], parameters), parameters
        residual, factor = (None if at is None else values[at] for at in (link.residual, link.factor))
        return *layer.run(values[link.x], parameters, residual, factor, inference), parameters

    def _run_layers(self, values: list[Any], inference: bool) -> None:
        """Runs the layers that have no result yet. Keeps their launches if the parameters are the same as in the call before."""
        first, key = len(values) - self.input_count, self._key(values)
        steps: list[_Step] = []
        for at, link in enumerate(self.links[first:], first):
            y, record, parameters = self._call_layer(link, values, inference)
            values.append(y)
            layouts = {number: TensorLayout.of(values[number]) for number in (*link.reads, self.input_count + at)} if record else {}
            steps.append(_Step(link, self.input_count + at, record, layouts, parameters))
            for number in self._dead_after[at]:
                values[number] = None
        launched = [parameter for step in steps if step.record for parameter in step.parameters]
        last = self._last_parameters.get(key[1]) or []
        if len(launched) == len(last) and all(map(is_, launched, last)) and launched:
            self._plans.put(key, _parts(steps, self.outputs) if first == 0 else ())  # (): some kept launch did not apply, start over
        elif first == 0 and not launched and inference and all(link.layer.always_pytorch for link in self.links):
            self._plans.put(key, self.links)
        self._last_parameters.put(key[1], launched)


def _needs_pytorch() -> bool:
    """Whether gradients are enabled or the call is traced, regardless of the operands."""
    return bool(torch.is_grad_enabled() or is_traced())


class _Step(NamedTuple):
    """A call of a layer: the record of its launch if that can be repeated, and the layouts of the values that it read and wrote."""

    link: Link
    result: int
    record: LaunchRecord | NormRecord | None
    layouts: dict[int, TensorLayout]
    parameters: tuple[Any, ...]

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of the values that the norm or the factor applies to."""
        link, swapped = self.link, isinstance(self.record, LaunchRecord) and self.record.swapped
        return (link.factor,) if swapped and link.factor is not None else (link.x, *link.others)

    @property
    def factor(self) -> int | None:
        return next((number for number in (self.link.x, self.link.factor) if number not in self.parts), None)

    @property
    def input_norm(self) -> NormRecord | None:
        return self.record.input_norm if isinstance(self.record, LaunchRecord) else None

    @property
    def workspace_bytes(self) -> int:
        return int(self.record.launch.launch.workspace_bytes) if isinstance(self.record, LaunchRecord) else 0

    @property
    def reads(self) -> list[tuple[int, Any]]:
        """The numbers of the values that it reads, each with its memory format."""
        assert self.record is not None
        form = (self.input_norm or self.record).memory_format
        read = [(number, form) for number in self.parts]
        read += [(self.factor, torch.contiguous_format)] if self.factor is not None else []
        return [*read, (self.link.residual, self.record.memory_format)] if self.link.residual is not None else read


def _parts(steps: Sequence[_Step], outputs: Sequence[int]) -> tuple["_LaunchGroup | Link", ...]:
    """Groups of consecutive launches, and the layers between them that run by themselves."""
    parts: list[_LaunchGroup | Link] = []
    for launched, group in groupby(steps, lambda step: step.record is not None):
        together = list(group)
        read = {number for step in steps if step.result > together[-1].result for number in step.link.reads}
        parts += [_LaunchGroup(together, read | {*outputs})] if launched else [step.link for step in together]
    return tuple(parts)


class _LaunchGroup:
    """Launches of layers as one native call; `read_outside`: the numbers of the values that other layers or the model read."""

    def __init__(self, steps: Sequence[_Step], read_outside: set[int]) -> None:
        results = [step.result for step in steps]
        self._operands = _operands(steps)
        given = [
            (number, one) for step in steps for number, one in zip(step.link.parameters, step.parameters, strict=True) if number is not None
        ]
        self._numbers, self._parameters = [number for number, _ in given], [one for _, one in given]
        versions = versions_of(tuple(parameter for step in steps for parameter in step.parameters))
        assert versions is not None  # layers with records have countable versions
        self._watched, self._epoch = all(step.link.layer.derived.watched for step in steps), None
        self._versions = versions
        memory = {step.result: step.result for step in steps}  # result -> the value whose memory it is stored in
        for step in steps:
            if isinstance(step.record, LaunchRecord) and step.record.adds_residual:
                assert step.link.residual is not None
                memory[step.result] = memory.get(step.link.residual, step.link.residual)
        outside = sorted({memory[number] for number in results if number in read_outside and memory[number] in memory})
        self._pieces = sorted({number for number, *_ in self._operands})
        self._allocate = [step.layouts[number].allocate for number in outside for step in steps if step.result == number]
        offsets, self._arena_bytes = assign_offsets(_lifetimes(steps, memory, outside), ALIGNMENT_BYTES)
        bases = {number: at for at, number in enumerate((*self._pieces, *outside), 2)}  # base 0: absolute addresses, base 1: the arena
        nowhere = Place(0)

        def place(number: int) -> Place:
            root = memory.get(number, number)
            return Place(bases[root]) if root in bases else Place(1, offsets["value", root])

        def in_arena(kind: str, step: _Step) -> Place:
            return Place(1, offsets[kind, step.result]) if (kind, step.result) in offsets else nowhere

        def norm(step: _Step, record: NormRecord, result: Place) -> NormStep:
            scale = place(step.factor) if record.scale_is_input and step.factor is not None else nowhere
            return NormStep(record.launch, tuple(map(place, step.parts)), result, scale)

        def launches(step: _Step) -> list[LaunchStep | NormStep]:
            record, input_norm, result = step.record, step.input_norm, place(step.result)
            if isinstance(record, NormRecord):
                return [norm(step, record, result)]
            assert record is not None
            weights, work = Place(0, record.weights.data_ptr()), in_arena("workspace", step)
            image = in_arena("image", step) if input_norm else place(step.parts[0])
            layer = LaunchStep(record.launch.launch, record.epilogue, image, weights, result, work)
            return [norm(step, input_norm, image), layer] if input_norm else [layer]

        self._steps = LaunchSteps([launch for step in steps for launch in launches(step)])
        self._keep_alive = [step.record for step in steps]
        self._results = [bases[memory[number]] - 2 if number in read_outside else None for number in results]
        self._library, self._device = arrays.library_of(torch.Tensor), steps[0].layouts[results[0]].device.index
        self._several_devices = len(cuda.devices()) > 1

    def applies_to(self, values: Sequence[Any]) -> bool:
        """Whether the operands have the recorded layouts and the parameters are the same and unchanged."""
        for number, layout, form in self._operands:
            x = values[number]
            if type(x) is not torch.Tensor or x.shape != layout.shape or x.dtype is not layout.dtype or x.device != layout.device:
                return False
            if x.data_ptr() % ALIGNMENT_BYTES or x.is_neg() or not x.is_contiguous(memory_format=form):
                return False
        epoch = EPOCH.now if self._watched else None
        if epoch is not None and self._epoch is epoch:
            return True
        if not all(map(is_, map(values.__getitem__, self._numbers), self._parameters)) or not self._versions.unchanged():
            return False
        self._epoch = epoch
        return True

    def run(self, values: list[Any]) -> bool:
        """Appends the results, None for those that only this group reads. False if memory ran out; then nothing was written."""
        pieces = [values[number] for number in self._pieces]
        first = pieces[0]
        with on_device_of(first) if self._several_devices else nullcontext():
            stream = self._library.stream(first)
            try:
                pieces += [allocate() for allocate in self._allocate]
                _owner, arena = workspace(self._arena_bytes, stream, (self._library, first, self._device))
            except torch.OutOfMemoryError:
                return False
            self._steps.run([0, arena, *[piece.data_ptr() for piece in pieces]], stream)
        values += [None if at is None else pieces[at] for at in self._results]
        return True


def _operands(steps: Sequence[_Step]) -> list[tuple[int, TensorLayout, Any]]:
    """The values that the group reads but does not compute: number, layout and memory format."""
    results = {step.result for step in steps}
    operands = {(number, form): step.layouts[number] for step in steps for number, form in step.reads if number not in results}
    return [(number, layout, form) for (number, form), layout in operands.items()]


def _lifetimes(steps: Sequence[_Step], memory: dict[int, int], outside: Sequence[int]) -> dict[tuple[str, int], Lifetime]:
    """Lifetimes of the arena's memory, in steps: ("value", number) of a result that only the group reads; ("workspace", result) and
    ("image", result) of a step's workspace and of the input that its `input_norm` writes."""
    lifetimes: dict[tuple[str, int], Lifetime] = {}
    for at, step in enumerate(steps):
        of_step = {"workspace": step.workspace_bytes, "image": step.input_norm.result.nbytes if step.input_norm else 0}
        lifetimes |= {(kind, step.result): Lifetime(nbytes, at, at) for kind, nbytes in of_step.items() if nbytes}
        root = memory[step.result]
        if root in memory and root not in outside:
            lifetimes.setdefault(("value", root), Lifetime(step.layouts[step.result].nbytes, at, at))
        for number in (*step.link.reads, step.result):
            if lifetime := lifetimes.get(("value", memory.get(number, number))):
                lifetime.last = at
    return lifetimes
