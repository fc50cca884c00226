# SPDX-License-Identifier: Apache-2.0
"""The layers of a graph that PyTorch's compiler will compile: which pysim's kernels compute, and the operators and inputs put in for them.

    taken    convolution and what fuses into it -> pysim::layer, where its plan is predicted to win (`layers.compiler_seconds`)
    folded   convolution, norm, residual and ReLU -> pysim::convolution_relu, one kernel of the library, where that is
    kept     the compiler's, but with weights in the type and memory format that its library would otherwise convert them to in each call,
             or with those of several products of one value behind each other (`joint_products`)

Operands made of parameters are further inputs of the graph, behind its own.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from pysim.calibration import host
from pysim.errors import PysimError
from pysim.network.fusion import INPUT_OP, NORM, OVERWRITE, PARTS, RESIDUAL, RESIDUAL_INPUT, SCALE, TIMES, fuse
from pysim.network.graph import Node
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.plan import Plan
from pysim.torch import operators
from pysim.torch.capture.between import is_fused, is_static, lies_apart, may_overwrite_residual
from pysim.torch.capture.effects import Effects, effects_of, name_of_operator
from pysim.torch.capture.forms import Operand
from pysim.torch.capture.nodes import WEIGHTED_OPS, append_inputs, graph_of, joined_channels
from pysim.torch.capture.rewrites.joint_products import Joint, insert_joint, joint_products
from pysim.torch.capture.rewrites.shuffled_pixels import with_shuffle
from pysim.torch.capture.rewrites.upsampled_images import of_small_image, upsampling_seconds
from pysim.torch.capture.rewriting import layer_of
from pysim.torch.layers.compiler_seconds import (
    BARE_MARGIN,
    FOLDED_MARGIN,
    MARGIN,
    compiler_seconds,
    converted_seconds,
    copied_seconds,
    folded_seconds,
    form_seconds,
    joined_seconds,
    library_seconds,
    most_folded,
    own_seconds,
)
from pysim.torch.layers.conv_forms import joined
from pysim.torch.layers.fused_layer import FOLDED, Decision, FusedLayer
from pysim.torch.layers.gpu_launch import memory_format_of
from pysim.torch.layers.tap_layer import TapLayer, summed
from pysim.torch.precision import HALF, TENSORS, ModelAccuracy, settings, types_of

_POOLS = ("max_pool2d", "avg_pool2d", "max_pool3d", "avg_pool3d")  # read a value several times


class Taken(NamedTuple):
    """A layer that pysim's kernel computes. `parameters`: the positions of its parameters among the graph's inputs. `form`: the memory
    format of its image and weights. `has`: whether scale and shift are there, as the operands tell. `otherwise`: the choice in place of one
    whose 16-bit weights are rounded sums, and `gain` the seconds by which this one is expected to be faster."""

    layer: FusedLayer
    parameters: tuple[int | None, ...]
    plan: Plan
    form: Any
    result: Any
    decision: Decision
    has: tuple[bool, ...] = ()
    gain: float = 0.0
    otherwise: "_Layer | None" = None

    def operands(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
        operands: tuple[Any, Any, Any]
        operands = self.layer.gpu_operands(self.plan, self.plan.name, _given(self.parameters, inputs), self.form, self.result)
        return operands

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether the type holds the weights, if they are sums."""
        if not self.layer.geometry.upsampled:
            return True
        given, w = _given(self.parameters, inputs), self.operands(inputs)[0]
        holds: bool = self.layer.derived.get(("holds", w.dtype), given, lambda: bool(torch.isfinite(w).all()))
        return holds


class Kept(NamedTuple):
    """A layer that the compiler computes from its weights and bias in the type and memory format that its library multiplies in; or several
    as one, whose weights and then biases are the parameters."""

    layer: FusedLayer
    parameters: tuple[int | None, ...]
    dtype: Any
    form: Any
    has: tuple[bool, ...]

    def operands(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        given = _given(self.parameters, inputs)
        weights, biases = (given[at : at + len(given) // 2] for at in (0, len(given) // 2))

        def compute() -> tuple[Any, ...]:
            w, *others = [one.detach().to(self.dtype, memory_format=self.form) for one in weights]
            bias = [one.detach().to(self.dtype) for one in biases if one is not None]
            return torch.cat([w, *others]) if others else w, None if not bias else torch.cat(bias) if others else bias[0]

        operands: tuple[Any, ...] = self.layer.derived.get(("kept", self.dtype, self.form), given, compute)
        return operands

    def holds(self, _: Sequence[Any]) -> bool:
        return True


class Folded(NamedTuple):
    """A convolution that PyTorch's library computes with its norm, residual and ReLU; the norm's scale is in the weights. `gain`: the
    seconds by which it is expected to be faster than `otherwise`."""

    layer: FusedLayer
    parameters: tuple[int | None, ...]
    dtype: Any
    decision: Decision
    gain: float
    otherwise: Taken | Decision
    form: Any = torch.channels_last
    has: tuple[bool, ...] = (True,)

    def operands(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        return self.layer.folded_operands(_given(self.parameters, inputs), self.dtype)

    def holds(self, inputs: Sequence[Any]) -> bool:
        """Whether the type holds the weights multiplied by the scale."""
        return self.operands(inputs)[1] is not None


def _given(positions: Sequence[int | None], inputs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(None if at is None else inputs[at] for at in positions)


_Found = Taken | Folded | Decision
_Layer = tuple[Node, FusedLayer, _Found]


class Chosen(NamedTuple):
    """A layer of the graph, and how it is computed; None: as the compiler does."""

    node: Node
    layer: FusedLayer
    taken: Taken | Folded | None


def fused_nodes(graph: fx.Graph, effects: Effects) -> Sequence[Node]:
    """The graph's operators, with what these layers absorb."""
    places, order = {node.name: node for node in graph.nodes}, {node: at for at, node in enumerate(graph.nodes)}
    return fuse(graph_of(graph, effects, compiled=True), lambda node, epilogue: _supports(node, epilogue, places, order, effects)).nodes


def choose_layers(
    module: fx.GraphModule,
    nodes: Sequence[Node],
    inputs: Sequence[Any],
    static: dict[fx.Node, int],
    accuracy: ModelAccuracy,
    in_cuda_graph: bool,
    margin: float = MARGIN,
) -> list[Chosen]:
    """All layers; nothing is computed from parameters yet. `margin`: by which a plan must win."""
    places = {node.name: node for node in module.graph.nodes}
    effects, found, absorbed = effects_of(module.graph), list[_Layer](), set[str]()  # operators in the kernels of layers taken so far
    for node in reversed(nodes):  # what reads a layer's result is chosen before it
        if node.op in WEIGHTED_OPS:
            layer = layer_of(node, places)
            layer.accuracy, layer.in_cuda_graph = accuracy, in_cuda_graph
            fuses_on = _fuses_on(node, layer, places, absorbed)
            one = _decided(node, layer, places, static, inputs, margin, fuses_on)
            layer, one = _by_taps(node, layer, one, places, static, inputs, margin)
            node, layer, one = _of_small_image((node, layer, one), places, static, inputs, margin, fuses_on, effects)
            if isinstance(one, Taken) and (made := with_shuffle(node, one.layer, places, effects)) is not None:
                node, layer, one = *made, one._replace(layer=made[1])
            absorbed |= set() if isinstance(one, Decision) else {*node.absorbed}
            found.append((node, layer, one))
    chosen = list[Chosen]()
    for node, layer, one in _within_errors([*reversed(found)], accuracy):
        decision, plan = (one, None) if isinstance(one, Decision) else (one.decision, one.plan if isinstance(one, Taken) else None)
        layer.remember(decision, plan)
        chosen.append(Chosen(node, layer, None if isinstance(one, Decision) else one))
    return chosen


def _within_errors(found: Sequence["_Layer"], accuracy: ModelAccuracy) -> list["_Layer"]:
    """The choices with as many folded layers and sums of weights as the network's expected error allows, those that gain most. Under
    accuracy standard, and in TF32, whose weights are rounded once either way, all."""
    most = len(found) if accuracy == "standard" else int(most_folded(len(found)))
    rounded = [(-one.gain, at) for at, (*_, one) in enumerate(found) if not isinstance(one, Decision) and _rounds(one)]
    kept = [*found]
    for _, at in sorted(rounded)[most:]:
        while not isinstance(one := kept[at][2], Decision) and _rounds(one):
            kept[at] = (*kept[at][:2], one.otherwise) if isinstance(one, Folded) else one.otherwise or found[at]
    return kept


def _rounds(one: Taken | Folded) -> bool:
    """Whether 16-bit weights of the layer are rounded once more."""
    return one.dtype in HALF if isinstance(one, Folded) else one.otherwise is not None


def _fuses_on(node: Node, layer: FusedLayer, places: dict[str, fx.Node], absorbed: Collection[str]) -> bool:
    """Whether the compiler computes what follows a layer in the kernels of all that reads it. Norms are not computed twice."""
    readers = places[node.output].users
    once = len(readers) == 1 and not any(name_of_operator(one) in _POOLS for one in readers)
    return all(is_fused(one) and one.name not in absorbed for one in readers) and (layer.epsilon is None or once)


def join_layers(
    module: fx.GraphModule, inputs: Sequence[Any], static: dict[fx.Node, int], chosen: Sequence[Chosen]
) -> tuple[list[Chosen], list[Joint]]:
    """The choices without the products that are computed as one, and these."""
    bare = [(node, layer) for node, layer, one in chosen if one is None or (layer.kind == "Linear" and not node.absorbed)]
    together = joint_products(module.graph, bare, static, inputs, effects_of(module.graph), host.gpu_here()) if bare else []
    joined, left = {node.name for one in together for node in one.nodes}, list[Chosen]()
    for one in chosen:
        if one.taken is not None and one.node.name in joined:
            of = one.taken.decision
            seconds = of.predicted_seconds or 0.0, of.torch_seconds or 0.0
            one.layer.remember(one.layer.left("it is one product with others of its value", of.problem, *seconds))
            one = one._replace(taken=None)
        left.append(one)
    return left, together


def insert_layers(
    module: fx.GraphModule, inputs: Sequence[Any], static: dict[fx.Node, int], chosen: Sequence[Chosen], together: Sequence[Joint]
) -> tuple[list[Taken | Folded | Kept], list[fx.Node]]:
    """The layers with operands of their own, and the nodes of the results that pysim computes. `together`: products that are one."""
    chosen = [one if one.taken is None or one.taken.holds(inputs) else one._replace(taken=None) for one in chosen]
    places = {node.name: node for node in module.graph.nodes}
    taken, nodes, made = list[Taken | Folded | Kept](), list[fx.Node](), list[fx.Node]()
    left = [(node, layer) for node, layer, one in chosen if one is None]
    for node, _, one in chosen:
        if one is None:
            continue
        one = one._replace(has=tuple(x is not None for x in one.operands(inputs)[1:]))
        insert: Any = _insert if isinstance(one, Taken) else _insert_folded
        given, result = insert(module, node, one, places)
        taken.append(one)
        made += given
        nodes.append(result)
    beside_ours, layers = bool(taken), {node.name: layer for node, layer in left}
    for products, *_ in together:
        joint = _joint(products, layers[products[0].name], places, static)
        taken.append(joint)
        made += insert_joint(module, products, joint.has[0], places)
    joined = {node.name for products, *_ in together for node in products}
    for node, layer in left:
        if node.name not in joined and (weights := _kept(node, layer, places, static, inputs, beside_ours)) is not None:
            taken.append(weights)
            made += _insert_weights(module, places[node.name], weights)
    append_inputs(module, made)
    return taken, nodes


def _supports(node: Node, epilogue: Any, places: dict[str, fx.Node], order: dict[fx.Node, int], effects: Effects) -> bool:
    if epilogue in (PARTS, INPUT_OP, OVERWRITE):
        return False
    if epilogue == RESIDUAL:
        interleaved = node.op in WEIGHTED_OPS and node.attributes["geometry"].added is not None
        return node.op in WEIGHTED_OPS and not interleaved and may_overwrite_residual(node, places, order, effects)
    if epilogue == SCALE:
        return node.op == "Linear"
    if epilogue == TIMES:
        return node.attributes["geometry"].added is None
    return node.op == "Conv" if epilogue == NORM else node.op in WEIGHTED_OPS


def _decided(
    node: Node,
    layer: FusedLayer,
    places: dict[str, fx.Node],
    static: dict[fx.Node, int],
    inputs: Sequence[Any],
    margin: float,
    fuses_on: bool,
) -> _Found:
    """The layer as pysim or the library computes it with what follows, or why it is left to the compiler."""
    operands = [places[name] if name else None for name in node.inputs]
    parameters = [*operands[1:RESIDUAL_INPUT], *[None] * (RESIDUAL_INPUT - len(operands))]
    if not all(one is None or one in static for one in parameters):
        return layer.left("its parameters are computed or written in the graph")
    x, result = (places[name].meta.get("example_value") for name in (node.inputs[0], node.output))
    positions = tuple(None if one is None else static[one] for one in parameters)
    given = _given(positions, inputs)
    w: Any = given[0]
    if not (is_static(x) and is_static(result) and x.device == w.device):
        return layer.left("its sizes are known in each call only")
    try:
        on, operand = host.gpu_here(), Operand.of(x)
        types = types_of(operand, w, layer.kind, layer.accuracy, settings())
        problem = layer.problem_of(operand, w, types[0]) if types else None
        if problem is None or parse(problem.text) != problem:  # the operator knows it by its text
            return layer.left(f"no kernel here supports x of {x.dtype} and shape {tuple(x.shape)}")
        plan = layer.fastest_plan(operand, w, types, on)
    except PysimError as error:
        return layer.left(str(error))
    residual = operands[RESIDUAL_INPUT] if len(operands) > RESIDUAL_INPUT else None
    adds, shifts = residual is not None, layer.kind == "Conv" and given[1] is not None  # whose bias the compiler adds apart
    dtype = layer.result_type(TENSORS[plan.workload.dtype], given, None if residual is None else residual.meta["example_value"])
    if dtype is not result.dtype:
        return layer.left(f"its result would be {dtype} here, {result.dtype} in PyTorch", plan.problem)
    own, theirs = form_seconds(problem, on, layer.geometry, result.numel())
    copied = copied_seconds([one for one in (x, residual and residual.meta["example_value"]) if lies_apart(one)], on)
    layer.alone_seconds = library_seconds(problem, on) + converted_seconds(problem, on, result.numel()) * operand.contiguous
    if layer.geometry.added is not None:  # a layer without a compiler, too, by whichever is faster
        layer.alone_seconds = min(library_seconds(problem, on) + theirs, own + own_seconds(plan, on, adds, layer.scales))
    readers = places[node.output].users
    if own and any(joined_channels(one) is not None for one in readers):
        own = joined_seconds(problem, on, result.numel())
    else:
        own *= not fuses_on
    seconds = own_seconds(plan, on, adds, layer.scales, layer.activation) + own + copied
    expected = compiler_seconds(problem, on, bool(layer.replaced) or shifts, adds, fuses_on) + theirs
    ours = Decision(layer.name, plan.problem, "pysim", plan.name, seconds, expected)
    found: Taken | Decision = Taken(layer, positions, plan, memory_format_of(plan), dtype, ours)
    margin += 0.0 if expected > library_seconds(problem, on) + theirs else BARE_MARGIN
    if math.isinf(margin) or seconds * (1 + margin) > expected:
        found = layer.left("the compiler's is expected to be about as fast or faster", plan.problem, seconds, expected)
    has_shift = layer.epsilon is not None or given[1] is not None
    if layer.in_cuda_graph and not math.isinf(margin) and has_shift and dtype is operand.dtype and layer.folds(operand, w, problem):
        folded, otherwise = folded_seconds(problem, on, adds) + copied, min(seconds, expected)
        if folded * (1 + FOLDED_MARGIN) < otherwise:
            return Folded(layer, positions, dtype, layer.left(FOLDED, plan.problem, seconds, folded), otherwise - folded, found)
    return found


def _by_taps(
    node: Node,
    layer: FusedLayer,
    found: _Found,
    places: dict[str, fx.Node],
    static: dict[fx.Node, int],
    inputs: Sequence[Any],
    margin: float,
) -> tuple[FusedLayer, _Found]:
    """The layer as a product with its taps, if that is expected to be faster than what was found for it; else as it is."""
    taken, decision = TapLayer.of(layer), found if isinstance(found, Decision) else found.decision
    weights, (x, result) = places.get(node.inputs[1]), (places[name].meta.get("example_value") for name in (node.inputs[0], node.output))
    before = decision.predicted_seconds if isinstance(found, Taken) else decision.torch_seconds
    if taken is None or weights not in static or before is None or math.isinf(margin):
        return layer, found
    w, on, operand = inputs[static[weights]], host.gpu_here(), Operand.of(x)
    try:
        plan = taken.fastest_plan(operand, w, types_of(operand, w, layer.kind, layer.accuracy, settings()), on)
    except PysimError:
        return layer, found
    seconds = taken.seconds(plan, w[0, 0].numel(), result.numel(), on)
    if parse(plan.workload.text) != plan.workload or seconds * (1 + margin) > before:
        return layer, found
    positions = (static[weights], *[None] * (RESIDUAL_INPUT - 2))
    taken.alone_seconds = before
    ours = Decision(layer.name, decision.problem, "pysim", f"{plan.name}, of its taps", seconds, before)
    summed_in = torch.promote_types(result.dtype, torch.float32)
    return taken, Taken(taken, positions, plan, memory_format_of(plan), summed_in, ours)


def _of_small_image(
    found: _Layer,
    places: dict[str, fx.Node],
    static: dict[fx.Node, int],
    inputs: Sequence[Any],
    margin: float,
    fuses_on: bool,
    effects: Effects,
) -> _Layer:
    """The layer of an upsampled image as one of the image itself, if that is expected to be faster than what was found for it."""
    node, layer, one = found
    weights, decision = places.get(node.inputs[1]), one if isinstance(one, Decision) else one.decision
    before = decision.predicted_seconds if isinstance(one, Taken) else decision.torch_seconds
    if weights not in static or before is None or math.isinf(margin):
        return found
    made = of_small_image(node, layer, inputs[static[weights]].shape[2:], places, effects)
    taken = None if made is None else _decided(made[0], made[1], places, static, inputs, -1.0, fuses_on)
    if made is None or not isinstance(taken, Taken):
        return found
    large, small = upsampling_seconds(places[node.inputs[0]], host.gpu_here())
    seconds, before = (taken.decision.predicted_seconds or 0.0) + small, before + large
    dtype = taken.plan.workload.dtype
    # a decoder took 1.02 of its time in TF32, where 0.90 was expected, 0.92 and 0.98 in f16 (H200, batch 16 and 1): TF32 where measured
    if seconds * (1 + margin) > before or (dtype == "tf32" and margin >= 0):
        return found
    made[1].alone_seconds = before
    ours = Decision(layer.name, decision.problem, "pysim", f"{taken.plan.name}, of the image before it is upsampled", seconds, before)
    return *made, taken._replace(decision=ours, gain=before - seconds, otherwise=found if TENSORS[dtype] in HALF else None)


def _kept(
    node: Node, layer: FusedLayer, places: dict[str, fx.Node], static: dict[fx.Node, int], inputs: Sequence[Any], beside_ours: bool
) -> Kept | None:
    """What the compiler's library would convert in each call; None if nothing. Images are channels last beside pysim's layers, and images
    and volumes in 16-bit types and TF32, in which cuDNN's kernels are made for that."""
    operands = [places[name] if name else None for name in (*node.inputs[1:3], "")][:2]
    example = places[node.name].meta.get("example_value")
    if operands[0] is None or not all(one is None or one in static for one in operands) or not is_static(example):
        return None
    positions = tuple(None if one is None else static[one] for one in operands)
    w, bias = _given(positions, inputs)
    types = types_of(Operand.of(example), w, layer.kind, layer.accuracy, settings())
    by_tensor_cores = bool(types and types[0] in ("tf32", "f16", "bf16"))
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(w.dim()) if by_tensor_cores or (beside_ours and w.dim() == 4) else None
    form = last if last is not None and layer.kind == "Conv" and layer.geometry.is_plain else torch.preserve_format
    if example.dtype is w.dtype and (form is torch.preserve_format or w.is_contiguous(memory_format=form)):
        return None
    return Kept(layer, positions, example.dtype, form, (bias is not None,))


def _joint(products: Sequence[Node], layer: FusedLayer, places: dict[str, fx.Node], static: dict[fx.Node, int]) -> Kept:
    """These products as one, in the type of the first one's result."""
    given = [[places[name] if name else None for name in (*node.inputs[1:3], "")][:2] for node in products]
    positions = tuple(None if one is None else static[one] for at in (0, 1) for one in [pair[at] for pair in given])
    dtype = places[products[0].name].meta["example_value"].dtype
    return Kept(layer, positions, dtype, torch.preserve_format, (positions[-1] is not None,))


def _insert_weights(module: fx.GraphModule, node: fx.Node, one: Kept) -> list[fx.Node]:
    """Gives a convolution or product of the compiler its converted weights. Returns the new inputs."""
    with module.graph.inserting_before(node):
        made = [module.graph.create_node("placeholder", f"pysim_{node.name}_{at}") for at in range(1 + sum(one.has))]
    before = [node.args[at] if len(node.args) > at else node.kwargs.get(name) for at, name in ((1, "weight"), (2, "bias"))]
    converted = dict(zip([value for value in before if isinstance(value, fx.Node)], made, strict=True))
    node.args = tuple(converted.get(value, value) if isinstance(value, fx.Node) and at else value for at, value in enumerate(node.args))
    node.kwargs = {name: converted.get(value, value) if isinstance(value, fx.Node) else value for name, value in node.kwargs.items()}
    return made


def _insert(module: fx.GraphModule, node: Node, one: Taken, places: dict[str, fx.Node]) -> tuple[list[fx.Node], fx.Node]:
    """Inserts the operator where the convolution or product stood. Returns the new inputs that it reads, and its result."""
    graph, anchor, last = module.graph, places[node.name], places[node.output]
    example, problem, dtype = last.meta["example_value"], one.plan.workload, TENSORS[one.plan.workload.dtype]
    geometry = one.layer.geometry
    with graph.inserting_before(anchor):
        given = [graph.create_node("placeholder", f"pysim_{anchor.name}_{at}") for at in range(1 + sum(one.has))]
        rest = iter(given[1:])
        scale, shift = (next(rest) if there else None for there in one.has)
        x: Any = places[node.inputs[0]]
        is_sequence, filters = len(geometry.stride) == 1, places[node.inputs[1]].meta["example_value"].shape
        joints = geometry.joints(problem, x.meta["example_value"].shape, filters) if isinstance(problem, Conv) else None
        residual = places[node.inputs[RESIDUAL_INPUT]] if len(node.inputs) > RESIDUAL_INPUT else None

        def readable(value: fx.Node) -> fx.Node:
            if one.layer.kind == "Linear":
                value = graph.call_method("reshape", (value, (-1, value.meta["example_value"].shape[-1])))
            elif is_sequence:
                value = graph.call_method("unsqueeze", (value, 2))
            return graph.call_method("contiguous", (value,), {"memory_format": one.form})

        if x.meta["example_value"].dtype is not dtype:
            example_x = x.meta["example_value"]
            x = graph.call_method("to", (x, dtype))
            x.meta["example_value"] = example_x
        shape = (problem.m, problem.n) if isinstance(problem, Gemm) else problem.output_shape
        if residual is not None:
            y = readable(residual)
        else:
            strides = torch.empty(shape, device="meta", memory_format=one.form).stride()
            kind = {"dtype": one.result, "device": example.device}
            y = graph.call_function(torch.empty_strided, (shape, strides), kind)  # `empty` would be filled with zeros
        how = operators.how_of(one.plan, one.layer.activation, one.result, residual is not None)
        graph.call_function(operators.layer, (readable(x), given[0], scale, shift, y, how))
        if one.layer.kind == "Linear":
            y = graph.call_method("reshape", (y, tuple(example.shape)))
        elif joints is not None:
            y = graph.call_function(joined, (y, *joints))
        elif is_sequence:
            y = graph.call_method("squeeze", (y, 2))
        elif isinstance(one.layer, TapLayer):
            bias = places[node.inputs[2]] if len(node.inputs) > 2 and node.inputs[2] else None
            y = graph.call_function(summed, (y, bias, filters[0], tuple(filters[2:]), tuple(geometry[:3]), example.dtype))
    _put(module.graph, node, y, places)
    return given, y


def _insert_folded(module: fx.GraphModule, node: Node, one: Folded, places: dict[str, fx.Node]) -> tuple[list[fx.Node], fx.Node]:
    graph, anchor, geometry = module.graph, places[node.name], one.layer.geometry
    with graph.inserting_before(anchor):
        given = [graph.create_node("placeholder", f"pysim_{anchor.name}_{at}") for at in range(2)]
        names = node.inputs[:1] + node.inputs[RESIDUAL_INPUT : RESIDUAL_INPUT + 1]
        read = [graph.call_method("contiguous", (places[name],), {"memory_format": torch.channels_last}) for name in names]
        x, residual, *_ = *read, None
        y = graph.call_function(operators.convolution_relu, (x, *given, residual, *map(list, geometry[:3])))
    _put(graph, node, y, places)
    return given, y


def _put(graph: fx.Graph, node: Node, y: fx.Node, places: dict[str, fx.Node]) -> None:
    """Puts a value in the place of a layer's last operator."""
    last = places[node.output]
    y.meta["example_value"] = last.meta["example_value"]
    last.replace_all_uses_with(y)
    for gone in (*reversed(node.absorbed), node.name):
        graph.erase_node(places[gone])
    places[node.output] = y
