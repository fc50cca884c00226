# SPDX-License-Identifier: Apache-2.0
"""What a captured graph does beside computing values: which memory nodes may share and write, and where operators may not move.

    roots(x)   the values whose memory x may lie in: x itself if its operator makes new memory; of what an operator writes in place and
               returns, its first input's; else the roots of all its inputs
    writes(x)  the inputs in whose memory the operator of x may write

Operators that are not known here may return their inputs and write to all of them. So a graph is understood only as far as the lists
below go, and what they leave out costs speed, never a result:

    a norm or factor whose parameters the graph writes is not fused into the layer before it
    nothing moves over a change of autocast, gradients or other state; what runs where the graph itself set autocast is PyTorch's
    if a view is taken of a layer's result before it is written to, or an operator may look at strides, each layer's result gets PyTorch's
    strides at once (`needs_strides`)
    random numbers that fill a tensor like one of the graph's values come in the order of its memory, which depends on what PyTorch's own
    operators make of strides: such a graph is PyTorch's (`draws_in_order`)
"""

import inspect
import operator
from collections.abc import Collection
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn import functional

_MAKERS = {
    "abs", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool2d", "add", "addmm", "amax", "amin",
    "arange", "avg_pool1d", "avg_pool2d", "avg_pool3d", "baddbmm", "batch_norm", "bmm", "cat", "clamp", "clone", "concat", "concatenate",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "cos", "dequantize_per_channel",
    "dequantize_per_tensor", "div", "elu", "embedding", "exp", "floordiv", "full", "gelu", "group_norm", "hardsigmoid", "hardswish",
    "hardtanh", "instance_norm", "interpolate", "layer_norm", "leaky_relu", "linear", "linear_over_channels", "log", "log_softmax",
    "matmul", "max_pool", "max_pool1d", "max_pool2d", "max_pool3d", "maximum", "mean", "minimum", "mish", "mm", "mul", "neg", "norm",
    "norm_over_channels", "ones", "ones_like", "pow", "quantize_per_tensor", "rand", "rand_like", "randn", "randn_like", "reciprocal",
    "relu", "relu6", "rsqrt", "scaled_dot_product_attention", "sigmoid", "silu", "sin", "softmax", "softplus", "sqrt", "stack", "std",
    "sub", "sum", "tanh", "tensor_core_attention", "true_divide", "truediv", "var", "where", "zeros", "zeros_like",
}  # fmt: skip
_OPERATORS_IN_PLACE = {
    getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "imatmul")
} | {operator.setitem}
_ENDING_IN_SCORES = {operator.and_, operator.or_, operator.not_}  # which write nothing, though other names with a final _ do
_STRIDE_READERS = {
    "as_strided", "as_strided_", "stride", "storage_offset", "untyped_storage", "storage", "data_ptr", "is_contiguous", "set_", "resize_",
    "resize_as_", "view_as_complex", "view_as_real", "data", "numpy", "__dlpack__",
}  # fmt: skip
_DRAWING = {  # random numbers, where they fill a tensor in the order of its memory
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "bernoulli_", "normal", "normal_",
    "uniform_", "random_", "exponential_", "log_normal_", "cauchy_", "geometric_", "poisson", "multinomial", "dropout", "dropout_",
    "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu", "rrelu_", "scaled_dot_product_attention",
}  # fmt: skip
_KNOWN_MODULES = (
    "torch",
    "torch.nn.functional",
    "torch.functional",
    "torch._jit_internal",
    "torch._C._nn",
    "torch._tensor",
    "_operator",
    "math",
)
_MOVES_STATE = ("_set_", "_enter_", "_exit_", "set_", "_push_", "_pop_", "manual_seed", "seed")


class Effects(NamedTuple):
    """`written`: the roots to which the graph writes. `regions`: for each node, how many changes of state come before it.
    `needs_strides`, `draws_in_order`: see above. `draws_numbers`: an operator may draw random ones. `aliases`: for each node, its roots.
    `writers`: for each node that writes to inputs of the graph, these inputs. `unsettled`: the nodes that run under an
    autocast of the graph's own. `turns_gradients_on`: for some nodes, where they are off for the call."""

    written: frozenset[fx.Node]
    regions: dict[fx.Node, int]
    needs_strides: bool
    draws_numbers: bool
    draws_in_order: bool
    aliases: dict[fx.Node, frozenset[fx.Node]]
    writers: dict[fx.Node, list[fx.Node]]
    unsettled: frozenset[fx.Node]
    turns_gradients_on: bool

    @property
    def writes_inputs(self) -> bool:
        return bool(self.writers)

    def returns_inputs(self, outputs: Collection[fx.Node]) -> bool:
        """Whether a result may lie in the memory of an input."""
        return any(root.op == "placeholder" for one in outputs for root in self.aliases[one])

    def share_memory(self, outputs: Collection[fx.Node]) -> bool:
        """Whether two results may lie in the same memory."""
        return sum(len(self.aliases[one]) for one in outputs) > len(frozenset().union(*(self.aliases[one] for one in outputs)))

    def may_move(self, node: fx.Node) -> bool:
        """Whether a node may move to the layers that it reads or that read it: nothing between changes the state or what it reads."""
        inputs = [one for one in node.all_input_nodes if one.op != "placeholder"]
        same = all(self.regions[one] == self.regions[node] for one in (*inputs, *node.users) if one.op != "output")
        return same and not any(self.aliases[one] & self.written for one in node.all_input_nodes if one.op == "placeholder")

    def owns(self, node: Any) -> bool:
        """Whether a value lies in memory that its own operator made."""
        return isinstance(node, fx.Node) and self.aliases[node] == {node}

    def fills(self, node: Any) -> bool:
        """Whether a value is all of the memory that an operator of the graph made, perhaps written in place since."""
        while isinstance(node, fx.Node) and node in self.aliases and node.args and written_by(node) == [node.args[0]]:
            node = node.args[0]
        return node in self.aliases and node.op != "placeholder" and self.owns(node)


def effects_of(graph: fx.Graph) -> Effects:
    aliases: dict[fx.Node, frozenset[fx.Node]] = {}
    regions: dict[fx.Node, int] = {}
    written: set[fx.Node] = set()
    writers: dict[fx.Node, list[fx.Node]] = {}
    viewed: set[fx.Node] = set()  # roots of which a view was taken, of values that the graph makes
    region, needs_strides, draws_numbers, draws_in_order = 0, False, False, False
    for node in graph.nodes:
        inputs, known = node.all_input_nodes, _is_known(node)
        targets = _writes(node, known)
        roots = frozenset().union(*(aliases[one] for one in inputs))
        makes = node.op in ("placeholder", "get_attr") or (known and not targets and name_of_operator(node) in _MAKERS)
        writes_first = known and bool(targets) and targets == [*node.args[:1]] and name_of_operator(node) != "set_"
        aliases[node] = frozenset({node}) if makes or not inputs else aliases[targets[0]] if writes_first else roots
        here = {root for one in targets for root in aliases[one]}
        made = {root for root in roots if root.op not in ("placeholder", "get_attr")}
        draws = _draws(node)
        draws_numbers |= draws or not known
        draws_in_order |= draws and bool(made)
        looks = node.op != "output" and (not known or name_of_operator(node) in _STRIDE_READERS)
        needs_strides |= bool(here & viewed) or (bool(made) and looks)
        written |= here
        if inputs_written := [root for root in here if root.op == "placeholder"]:
            writers[node] = inputs_written
        if not makes and not targets and node.op != "output":
            viewed |= made
        region += _changes_state(node, known)
        regions[node] = region
    return Effects(
        frozenset(written),
        regions,
        needs_strides,
        draws_numbers,
        draws_in_order,
        aliases,
        writers,
        _unsettled(graph),
        _turns_gradients_on(graph),
    )


def _unsettled(graph: fx.Graph) -> frozenset[fx.Node]:
    found, open_casts = set[fx.Node](), 0
    for node in graph.nodes:
        name = name_of_operator(node)
        if name in ("_enter_autocast", "_exit_autocast"):
            open_casts += 1 if name == "_enter_autocast" else -1
        elif open_casts:
            found.add(node)
    return frozenset(found)


def _turns_gradients_on(graph: fx.Graph) -> bool:
    """Of a graph that is called under the settings of now."""
    return not torch.is_grad_enabled() and any(name_of_operator(one) == "_set_grad_enabled" and one.args[0] for one in graph.nodes)


def is_pure(node: fx.Node) -> bool:
    """Whether an operator computes its result and does nothing else: it neither writes nor draws, and does not look at memory."""
    known = _is_known(node)
    changes = _draws(node) or _changes_state(node, known) or name_of_operator(node) in _STRIDE_READERS
    return known and not changes and not _writes(node, known)


def may_trace(node: fx.Node, effects: Effects, made: Collection[fx.Node]) -> bool:
    """Whether an operator only computes values, or writes to values that these nodes made."""
    known = _is_known(node)
    if not known or _draws(node) or _changes_state(node, known) or name_of_operator(node) in _STRIDE_READERS:
        return False
    return node not in effects.unsettled and all(root in made for target in _writes(node, known) for root in effects.aliases[target])


def written_by(node: fx.Node) -> list[fx.Node]:
    """The inputs in whose memory an operator may write."""
    return _writes(node, _is_known(node))


def makes_memory(node: fx.Node) -> bool:
    """Whether a pure operator's result is in memory of its own."""
    return name_of_operator(node) in _MAKERS


def name_of_operator(node: fx.Node) -> str:
    """The name of an operator without its overload: "relu_" of torch.relu_, Tensor.relu_ and functional.relu_."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    if node.target in (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d, functional.adaptive_max_pool2d):
        return "max_pool2d"  # of a function that dispatches on an argument
    return str(getattr(getattr(node.target, "overloadpacket", node.target), "__name__", ""))


def _is_known(node: fx.Node) -> bool:
    """Whether a node is one of PyTorch's own operators, and neither a call of the user's code nor a higher-order one."""
    if node.op in ("placeholder", "get_attr", "output", "call_method"):
        return True
    if node.op != "call_function":
        return False
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):  # as exported programs call them
        return target.namespace in ("aten", "quantized_decomposed") and torch.Tag.nondeterministic_seeded not in target.tags
    if isinstance(target, torch._ops.OpOverloadPacket):
        return False
    module = getattr(target, "__module__", None)
    built_in = module is None and inspect.isbuiltin(target)
    return built_in or module in _KNOWN_MODULES or target in (getattr, operator.getitem) or str(module).startswith("pysim.")


def _writes(node: fx.Node, known: bool) -> list[fx.Node]:
    """The inputs in whose memory this operator may write."""
    first = [one for one in node.args[:1] if isinstance(one, fx.Node)]
    name, inputs = name_of_operator(node), node.all_input_nodes
    if node.op in ("placeholder", "get_attr", "output") or not inputs:
        return []
    if not known:
        schema = getattr(node.target, "_schema", None)
        return [] if schema is not None and not schema.is_mutable else inputs
    if node.target in _ENDING_IN_SCORES:
        return []
    if node.target in _OPERATORS_IN_PLACE or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i"):
        return first
    if name == "__setitem__":
        return first
    given = _arguments(node)
    written = [one for one in (given.get("out"),) if isinstance(one, fx.Node)]
    if isinstance(given.get("out"), list | tuple):
        written += [one for one in given["out"] if isinstance(one, fx.Node)]
    if given.get("inplace") is True:
        written += first or inputs[:1]
    if name in ("batch_norm", "instance_norm") and given.get("training" if name == "batch_norm" else "use_input_stats", True) is not False:
        statistics = ("running_mean", "running_var")
        written += [given[one] for one in statistics if isinstance(given[one], fx.Node)] if given.keys() >= {*statistics} else inputs[1:]
    return written


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments by name as far as a signature is known."""
    signature = _signature(node.target)
    try:
        bound = signature.bind(*node.args, **node.kwargs) if signature is not None else None
    except TypeError:
        bound = None
    if bound is None:
        return dict(node.kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


@lru_cache(maxsize=1024)
def _signature(target: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(target)
    except (TypeError, ValueError):
        return None


def _draws(node: fx.Node) -> bool:
    """Whether an operator may draw random numbers: dropout in training, attention with a probability to drop."""
    if name_of_operator(node) not in _DRAWING:
        return False
    if name_of_operator(node) == "scaled_dot_product_attention":
        return node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0) != 0.0
    return _arguments(node).get("training", True) is not False


def _changes_state(node: fx.Node, known: bool) -> bool:
    """Whether a node may change autocast, gradients, generators or other state: what is called for no value of the graph."""
    if node.op in ("placeholder", "get_attr", "output"):
        return False
    return not known or (node.op == "call_function" and name_of_operator(node).startswith(_MOVES_STATE))
