# SPDX-License-Identifier: Apache-2.0
"""A captured graph on a GPU as one compiled graph: pysim's kernels where they are expected to win, PyTorch's compiler for everything else.

    captured graph -> layers and what fuses into them -> those predicted to win as `pysim::layer` -> torch._inductor.compile_fx

Inductor fuses what lies between the layers (norms, gates, upsampling, concatenations, attention), gives every value its layout and memory,
and keeps the graph's effects: writes, aliases and random numbers are AOTAutograd's, with PyTorch's own generators. Parameters stay inputs.
What a kernel reads of them (folded, packed or cast weights) follows them as further inputs, made by `FusedLayer.gpu_operands` before a call
and again after one of them changed; a layer whose parameters the graph computes or writes to is therefore the compiler's.

A residual is summed in the kernel if nothing reads it later: the compiler then lets the result take its memory.
"""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._triton import has_triton

from pysim.calibration import host
from pysim.logs import LOG
from pysim.network.fusion import fuse
from pysim.torch.capture.between import Between, seconds_between
from pysim.torch.capture.compiled_layers import Chosen, Folded, Kept, Taken, choose_layers, fused_nodes, insert_layers, join_layers
from pysim.torch.capture.effects import Effects, effects_of
from pysim.torch.capture.nodes import graph_of
from pysim.torch.capture.rewrites.attention_masks import with_contiguous_rows
from pysim.torch.capture.rewrites.group_norms import FoundNorm, group_norms, insert_group_norms
from pysim.torch.capture.rewrites.joint_products import Joint
from pysim.torch.capture.rewrites.known_masks import without_known_masks
from pysim.torch.capture.rewrites.preferred_layouts import layers_as_convolutions, share_copies
from pysim.torch.capture.rewrites.tensor_core_attention import may_cut, on_tensor_cores
from pysim.torch.capture.rewriting import fuses_alone, remove_idle, returned, rewrite, views_to_reshapes
from pysim.torch.capture.strides import restore_strides
from pysim.torch.layers.compiler_seconds import MARGIN, compile_seconds
from pysim.torch.layers.fused_layer import FusedLayer
from pysim.torch.parameters import EPOCH, count_writes
from pysim.torch.precision import ModelAccuracy, is_plain_float32

# Calls of a graph that are expected if nothing is said
RUNS = 200_000
# Random numbers are those of PyTorch's generators. Calls are captured by pysim or by the caller; parameters may change
_OPTIONS = {"fallback_random": True, "freezing": False, "triton.cudagraphs": False}


class CompiledGraph:
    """`call`: of the graph's inputs and the layers' operands; `captured`: the same by PyTorch's operators. `written`: the positions of the
    inputs that the graph writes to."""

    def __init__(
        self, call: Callable[..., Any], layers: Sequence[Taken | Folded | Kept], captured: Callable[..., Any], written: Collection[int]
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


def operands_of(layers: Sequence[Taken | Folded | Kept], inputs: Sequence[Any]) -> list[Any] | None:
    """The layers' operands as a flat list; None if one has a scale that was folded at the capture: 16-bit weights may not hold it now."""
    operands = []
    for one in layers:
        w, *rest = one.operands(inputs)
        if tuple(x is not None for x in rest) != one.has or not one.holds(inputs):
            return None
        operands += [w, *[x for x in rest if x is not None]]
    return operands


class Expected(NamedTuple):
    """Seconds of a call: what lies between the layers, by operators one by one and by the compiler's kernels; the layers without the
    compiler, and each by whichever is faster in a graph that is compiled."""

    between_alone: float
    between_fused: float
    layers_alone: float
    layers_compiled: float

    @property
    def saving(self) -> float:
        return self.between_alone + self.layers_alone - self.between_fused - self.layers_compiled


def expected_of(between: Between, layers: Sequence[FusedLayer], joining: float) -> Expected:
    """Without the compiler sequences are PyTorch's, and transposed convolutions and those of few filters
    the faster one's: their `alone_seconds`. `joining`: the
    seconds that products of one value save as one."""
    alone = compiled = 0.0
    for layer in layers:
        for choice in layer.choices.values():
            ours, theirs = choice.decision.predicted_seconds, choice.decision.torch_seconds
            if layer.only_compiled or not layer.geometry.is_plain:
                alone += layer.alone_seconds
                compiled += min(layer.alone_seconds, ours or 0.0) if choice.plan is not None else layer.alone_seconds
            elif ours and theirs:
                alone += ours
                compiled += min(ours, theirs)
    return Expected(between.alone, between.fused, alone, compiled - joining)


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


def by_compiler(
    module: fx.GraphModule, inputs: Sequence[Any], accuracy: ModelAccuracy, in_cuda_graph: bool, asked: bool | None, runs: int = RUNS
) -> tuple[Compiled | None, str]:
    """The graph compiled, `asked` for or, if nothing is said (None), because that is expected to pay in this many calls; and what is to be
    said of it: what compiling saves and takes, or why it is not compiled, though it would be faster or is asked for."""
    if any(isinstance(one, torch.SymInt) for one in inputs):
        tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
        if not asked or (accuracy != "tf32" and is_plain_float32(tensors)):
            return None, "sizes differ between calls" if asked else ""
    made, missing, pays = None, missing_compiler(), ""
    try:
        graph = None if asked and missing else laid(module, inputs, accuracy, in_cuda_graph)
        if graph is not None and not asked:
            pays = graph.pays(runs)
            LOG.info("%s", pays)
            if graph.saving * runs < graph.compile_seconds:
                return None, pays if graph.saving > 0 else ""
        made = None if graph is None or missing else graph.compile()
    except Exception as error:  # of the compiler, for operators that it does not know or a tool that is not there
        missing = f"the compiler failed: {str(error).strip().partition(chr(10))[0]}"
    LOG.info("a graph is %s", f"not compiled: {missing}" if made is None else "compiled by Inductor around pysim's layers")
    return made, missing or pays


WAYS = {"expected": MARGIN, "doubtful": -0.1, "compiler": math.inf}  # by which a plan must win to be in the graph


def ways_of(
    module: fx.GraphModule, inputs: Sequence[Any], accuracy: ModelAccuracy, in_cuda_graph: bool, only: str = ""
) -> dict[str, Compiled]:
    """The graph without the compiler, and compiled around several choices of layers that differ; or that one alone. Without a compiler, and
    where it fails, only the first. `module` itself is left as it is."""
    found, seen = dict[str, Compiled](), list[list[bool]]()
    for name, margin in WAYS.items() if not missing_compiler() else ():
        try:
            graph = laid(module, inputs, accuracy, in_cuda_graph, margin)
            taken = [one.taken is not None for one in graph.chosen]
            if only in (name, "") and taken not in seen:
                found[name] = graph.compile()
            seen.append(taken)
        except Exception as error:  # of the compiler, for operators that it does not know or a tool that is not there
            LOG.info("a graph is not compiled: %s", error)
    if only not in found:
        rewritten = rewrite(fx.GraphModule(module, _copy(module.graph)), accuracy, in_cuda_graph)
        found["alone"] = Compiled(rewritten.call, rewritten.layers, rewritten.parameters, rewritten.means, rewritten.repeatable)
    return found


class Laid(NamedTuple):
    """A copy of a captured graph, and its layers with the plans that are expected to win in it. `saving`: the seconds of a call that the
    compiler is expected to save; `compile_seconds`: what it is expected to take."""

    captured: fx.GraphModule
    module: fx.GraphModule
    inputs: Sequence[Any]
    static: dict[fx.Node, int]
    chosen: list[Chosen]
    together: list[Joint]
    norms: list[FoundNorm]
    before: Effects
    written: Collection[int]
    saving: float
    compile_seconds: float

    def pays(self, runs: int) -> str:
        """After how many calls compiling is expected to have paid."""
        calls = f"repaid after {self.compile_seconds / self.saving:,.0f} calls" if self.saving > 0 else "never repaid"
        saves, takes = f"{1e3 * self.saving:.3f} ms of a call", f"{self.compile_seconds:.1f} s"
        return f"PyTorch's compiler is expected to save {saves} and to take {takes}: {calls}, {runs:,} are expected"

    def compile(self) -> Compiled:
        """Raises what the compiler raises."""
        from torch._inductor.compile_fx import compile_fx

        results = returned(self.module.graph)
        repeatable = not (self.written or self.before.draws_numbers or self.before.returns_inputs(results))
        taken = self._insert(only_results=not self.before.share_memory(results))
        operands = operands_of(taken, self.inputs)
        assert operands is not None
        last = any(one.form is torch.channels_last for one in taken)
        options = _OPTIONS | ({"force_layout_optimization": True} if last else {})
        with layers_as_convolutions():
            inner = compile_fx(self.module, [*self.inputs, *map(_static, operands)], config_patches=options)
        call = CompiledGraph(inner, taken, self.captured.forward, self.written)
        parameters = sorted({at for one in taken for at in one.parameters if at is not None})
        places = self.captured.graph.find_nodes(op="placeholder")
        means = [at for at in parameters if "running_mean" in places[at].name]
        return Compiled(call, [one.layer for one in self.chosen], parameters, means, repeatable)

    def _insert(self, only_results: bool) -> list[Taken | Folded | Kept]:
        """Puts pysim's operators into the copy. Returns the layers with operands of their own."""
        module = self.module
        for one in self.chosen:
            one.layer.derived.watched = not self.written
        taken, nodes = insert_layers(module, self.inputs, self.static, self.chosen, self.together)
        nodes += insert_group_norms(module, self.norms, nodes, host.gpu_here())
        if self.before.needs_strides:
            restore_strides(module, nodes)
        else:
            share_copies(module.graph, self.before)
            restore_strides(module, [one for one in returned(module.graph) if one.op != "placeholder"], only_results)
        module.graph.lint()
        module.recompile()
        return taken


def laid(module: fx.GraphModule, inputs: Sequence[Any], accuracy: ModelAccuracy, in_cuda_graph: bool, margin: float = MARGIN) -> Laid:
    """The module itself is left as it is."""
    made = fx.GraphModule(module, _copy(module.graph))
    remove_idle(made)
    before = effects_of(made.graph)
    without_known_masks(made.graph, before, may_cut(before, accuracy))
    with_contiguous_rows(made.graph, before)
    on_tensor_cores(made, before, accuracy, host.gpu_here())
    written = {one for targets in before.writers.values() for one in targets}
    places = [node for node in made.graph.nodes if node.op == "placeholder"]
    if not before.needs_strides:
        views_to_reshapes(made)
    effects = effects_of(made.graph)
    static = _unwritten(places, inputs, written)
    alone, nodes = fuse(graph_of(made.graph, effects), fuses_alone).nodes, fused_nodes(made.graph, effects)
    between = seconds_between(made.graph, alone, nodes, effects, host.gpu_here(), in_cuda_graph)
    chosen, together = join_layers(made, inputs, static, choose_layers(made, nodes, inputs, static, accuracy, in_cuda_graph, margin))
    positions = [at for at, one in enumerate(places) if one in written]
    expected = expected_of(between, [one.layer for one in chosen], sum(one.saved for one in together))
    takes = compile_seconds(len(between.kernels), len(chosen))
    norms = [] if math.isinf(margin) else group_norms(made.graph, effects)
    return Laid(module, made, inputs, static, chosen, together, norms, before, positions, expected.saving, takes)


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
