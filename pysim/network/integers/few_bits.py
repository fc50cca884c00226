# SPDX-License-Identifier: Apache-2.0
"""Products with constant weights of four bits in blocks, as MatMulNBits and DequantizeLinear with block_size have them, that decode their
weights in registers:

    FewBits (x, panels[, bias])    attributes: columns, block, has_zeros, rounds     `pysim.runtime.integer_steps`

Numbers are those of the file, scale (q - zero), but a scale is multiplied by the sum of its block. `rounds`: x may be rounded to bytes,
each block of a row by its largest magnitude, as accuracy_level 4 of MatMulNBits allows.
"""

from collections.abc import Callable

import numpy as np

from pysim.network.graph import Array, Graph, Node, Quantized, Tensor, live
from pysim.runtime.integer_steps import FewBits, packed, takes_bits

Faster = Callable[[Node, Node, Graph], bool]  # a FewBits than the Linear that it is


def with_few_bits(graph: Graph, faster: Faster, rounds: bool) -> Graph:
    """The graph with such products wherever they are faster. `rounds`: they round where the model allows it."""
    constants, tensors, nodes = dict(graph.constants), dict(graph.tensors), list[Node]()
    for node in graph.nodes:
        found = _packed(node, graph)
        if found is not None:
            name = f"{node.output}:bits"
            tensor = Tensor(found.panels.shape, found.panels.dtype)
            about = {"columns": found.columns, "block": found.block, "has_zeros": found.has_zeros}
            about |= {"rounds": rounds and graph.quantized[node.inputs[1]].rounds}
            made = Node("FewBits", node.name, (node.inputs[0], name, *node.inputs[2:]), node.outputs, about, node.absorbed)
            if faster(made, node, graph._replace(tensors={**tensors, name: tensor})):
                constants[name], tensors[name], node = found.panels, tensor, made
        nodes.append(node)
    return (
        live(graph._replace(nodes=tuple(nodes), constants=constants, tensors=tensors)) if len(constants) > len(graph.constants) else graph
    )


def _packed(node: Node, graph: Graph) -> FewBits | None:
    if node.op != "Linear" or (held := graph.quantized.get(node.inputs[1])) is None or not held.block:
        return None
    single = all(graph.tensors[name].dtype == np.float32 for name in (node.inputs[0], node.output, *node.inputs[2:]) if name)
    if not single or node.attributes.get("activation") or len(node.inputs) > 3 or node.output in graph.narrow | graph.half:
        return None
    held = held.transposed() if held.axis % 2 == 1 else held  # (k, columns)
    nibbles = _nibbles(held)
    return None if nibbles is None else packed(*nibbles, held.block)


def _nibbles(held: Quantized) -> tuple[Array, Array, Array] | None:
    """Values of 0 to 15, scales, and zeros of such values."""
    if held.values.dtype.name not in ("int4", "uint4", "int8", "uint8") or not takes_bits(len(held.values), held.block):
        return None
    values, zero = held.values.astype(np.int16), held.zero.astype(np.float32)
    offset = 8 if values.min(initial=0) < 0 else 0  # of signed numbers
    values += offset
    shape = (-(-len(values) // held.block), values.shape[1])
    if values.min(initial=0) < 0 or values.max(initial=0) > 15 or held.scale.shape != shape or zero.size not in (1, held.scale.size):
        return None
    return values.astype(np.uint8), held.scale, np.broadcast_to(zero.reshape(shape if zero.size > 1 else (1, 1)), shape) + offset
