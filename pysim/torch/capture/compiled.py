# SPDX-License-Identifier: Apache-2.0
"""A captured graph on a GPU as one compiled graph: pysim's kernels where they are expected to win, PyTorch's compiler for everything else.

    captured graph -> layers and what fuses into them -> those predicted to win as `pysim::layer` -> torch._inductor.compile_fx

Inductor fuses what lies between the layers (norms, gates, upsampling, concatenations, attention), gives every value its layout and memory,
and keeps the graph's effects: writes, aliases and random numbers are AOTAutograd's, with PyTorch's own generators. Parameters stay inputs.
What a kernel reads of them (folded, packed or cast weights) follows them as further inputs, made by `FusedLayer.gpu_operands` before a call
and again after one of them changed; a layer whose parameters the graph computes or writes to is therefore the compiler's.

A residual is summed in the kernel if nothing reads it later: the compiler then lets the result take its memory.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._triton import has_triton

from pysim.torch.capture.compiled_layers import Kept, Taken, insert_layers
from pysim.torch.capture.effects import effects_of
from pysim.torch.capture.rewriting import remove_idle, returned, views_to_reshapes
from pysim.torch.capture.strides import restore_strides
from pysim.torch.layers.fused_layer import FusedLayer
from pysim.torch.parameters import EPOCH, count_writes
from pysim.torch.precision import ModelAccuracy

# Random numbers are those of PyTorch's generators. Calls are captured by pysim or by the caller; parameters may change
_OPTIONS = {"fallback_random": True, "freezing": False, "triton.cudagraphs": False}


class CompiledGraph:
    """`call`: of the graph's inputs and the layers' operands; `captured`: the same by PyTorch's operators. `written`: the positions of the
    inputs that the graph writes to."""

    def __init__(
        self, call: Callable[..., Any], layers: Sequence[Taken | Kept], captured: Callable[..., Any], written: Collection[int]
    ) -> None:
        self._call, self._layers, self._captured, self._written = call, layers, captured, tuple(written)
        self._known: tuple[Any, list[Any] | None] = (object(), None)

    def __call__(self, *inputs: Any) -> Any:
        epoch, operands = self._known
        if self._written and self._writes_parameters(inputs):
            operands = None
        elif epoch is not EPOCH.now or epoch is None:
            operands = operands_of(self._layers, inputs)
            self._known = EPOCH.now, operands
        try:
            return self._captured(*inputs) if operands is None else self._call(*inputs, *operands)
        finally:
            count_writes(*[inputs[at] for at in self._written])

    def _writes_parameters(self, inputs: Sequence[Any]) -> bool:
        """Whether a layer's parameter lies now in memory to which the graph writes."""
        memory = {inputs[at].untyped_storage().data_ptr() for at in self._written}
        read = {at for one in self._layers for at in one.parameters if at is not None}
        return any(inputs[at].untyped_storage().data_ptr() in memory for at in read)


def operands_of(layers: Sequence[Taken | Kept], inputs: Sequence[Any]) -> list[Any] | None:
    """The layers' operands as a flat list; None if one has a scale that was folded at the capture: 16-bit weights may not hold it now."""
    operands = []
    for one in layers:
        w, *rest = one.operands(inputs)
        if tuple(x is not None for x in rest) != one.has:
            return None
        operands += [w, *[x for x in rest if x is not None]]
    return operands


class Compiled(NamedTuple):
    """A graph compiled; all its layers; the positions of the inputs that are parameters of those that pysim computes, and of those among
    them that are running means. `repeatable`: as `rewriting.Rewritten` has it."""

    call: Callable[..., Any]
    layers: list[FusedLayer]
    parameters: list[int]
    means: list[int]
    repeatable: bool


def missing_compiler() -> str:
    """Why nothing can be compiled for a GPU here; "" if it can."""
    return "" if has_triton() else "PyTorch's compiler needs Triton"


def compiled(module: fx.GraphModule, inputs: Sequence[Any], accuracy: ModelAccuracy, in_cuda_graph: bool) -> Compiled:
    """The module itself is left as it is. Raises what the compiler raises."""
    from torch._inductor.compile_fx import compile_fx

    made = fx.GraphModule(module, _copy(module.graph))
    remove_idle(made)
    before = effects_of(made.graph)
    written = {one for targets in before.writers.values() for one in targets}
    places = [node for node in made.graph.nodes if node.op == "placeholder"]
    results = returned(made.graph)
    repeatable = not (written or before.draws_numbers or before.returns_inputs(results))
    only_results = not before.share_memory(results)
    if not before.needs_strides:
        views_to_reshapes(made)
    static = _unwritten(places, inputs, written)
    layers, taken, nodes = insert_layers(made, inputs, static, accuracy, in_cuda_graph)
    if before.needs_strides:
        restore_strides(made, nodes)
    else:
        restore_strides(made, [one for one in returned(made.graph) if one.op != "placeholder"], only_results)
    made.graph.lint()
    made.recompile()
    for one in taken:
        one.layer.derived.watched = not written
    operands = operands_of(taken, inputs)
    assert operands is not None
    last = any(one.form is torch.channels_last for one in taken)
    options = _OPTIONS | ({"force_layout_optimization": True} if last else {})
    inner = compile_fx(made, [*inputs, *map(_static, operands)], config_patches=options)
    call = CompiledGraph(inner, taken, module.forward, [at for at, one in enumerate(places) if one in written])
    parameters = sorted({at for one in taken for at in one.parameters if at is not None})
    return Compiled(call, layers, parameters, [at for at in parameters if "running_mean" in places[at].name], repeatable)


def _unwritten(places: Sequence[fx.Node], inputs: Sequence[Any], written: Collection[fx.Node]) -> dict[fx.Node, int]:
    """The inputs in whose memory the graph does not write, and their positions."""
    tensors = [isinstance(one, torch.Tensor) for one in inputs]
    memory = {inputs[at].untyped_storage().data_ptr() for at, node in enumerate(places) if node in written and tensors[at]}
    return {node: at for at, node in enumerate(places) if tensors[at] and inputs[at].untyped_storage().data_ptr() not in memory}


def _copy(graph: fx.Graph) -> fx.Graph:
    made, values = fx.Graph(), dict[fx.Node, fx.Node]()
    made.output(made.graph_copy(graph, values))
    for node in made.nodes:
        node.meta.pop("grapharg", None)  # a weak reference to a tensor of the model
    return made


def _static(x: Any) -> Any:
    """A tensor as the capture sees one whose sizes are the same in each call."""
    context = torch._guards.TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    return x if mode is None else mode.from_tensor(x, static_shapes=True)
