# SPDX-License-Identifier: Apache-2.0
"""Expected time of everything in a network beside its convolutions and products: other operators, residuals and activations.

Data that operators read and write, and residuals, move at the rate of the smallest cache level that holds them all. In addition:

    transposition across rows    log2(lanes) shuffles per written vector, also for partial vectors; likewise a layout conversion, but not
                                 between rows of channels and blocks of them
    rows (`native/rows.inc`)     vectors x operations / rate; each reduction of a row adds a chain of 2 log2(lanes) dependent instructions
                                 with the latency of a multiply-add
    Attention                    the multiply-adds of two products, of rows in groups, a softmax's operations, keys and values that are
                                 packed, and sums that are stored and loaded for each block of keys
    Take, element by element     its loads: an index and an element; with shares, also a share, for each of the several rows
    Recurrent                    in each step its multiply-adds, or its weights from the cache that holds them
    pools                        passes over rows in L1, one element per tap along columns and per tap along rows
    activations                  those that the kernels' epilogues lack: rows x ceil(columns / lanes) x max(operations / fma_per_cycle,
                                 1 / loads_per_cycle, 1 / stores_per_cycle)

Before a layer computes, it waits for START_LINES cache lines from memory.

On T threads operators but those of ON_ONE_THREAD are divided, and a region starts and ends (`pysim.cachemodel.cpu.threads`). Layers divide
their work in different ways (filters, groups, rows), so of what each thread reads, others have written the part (T - 1) / T. Those lines
come from the other cores' caches, `written_line_cycles` each, as many at once as those of the shared cache: its latency times its
bandwidth. None do between operators that are divided IN_ORDER of memory and depthwise layers. A concatenation whose parts were all computed
in its result takes no time.

Worked number: Softmax of 9408 rows of 49, vectors of 16, two multiply-adds per cycle with latency 4. A row takes 100 cycles: 4 vectors of
9 cycles and two reductions of 32. That is 0.22 ms at 4.3 GHz, plus 1.8 MB each way from L3. SiLU has 16 operations: 480 planes of 14 x 14
are 480 x 13 vectors of 8 cycles, 49,920 in all.
"""

from math import inf, log2, prod

import numpy as np

from pysim.cachemodel.cpu.threads import fork_join_cycles
from pysim.machine.cpu import Machine, Unit
from pysim.network.arena import Buffers, view_offset
from pysim.network.fusion import RESIDUAL_INPUT, activation_of
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.integers.layers import INTEGER_LAYERS, writes_bytes
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.registry.cpu import epilogue_operations, loop_targets, products_of_bytes, rows_kinds
from pysim.runtime.operators import BITS

DTYPES = {"float32": "f32", "float64": "f64", BITS.name: "f32"}  # by which values are computed
START_LINES = 12  # dependent misses on code, structs and weights at the start of a layer (Zen 5: layers of one pixel, 1.9 us each)
# rows of a tile, keys of a block, rows for which keys are packed once (native/operators/loops.h)
ATTENTION_GROUP, ATTENTION_KEYS, ATTENTION_ROWS = 6, 256, 384
# of an element of an attention's result, for each block of keys; of one of its keys and values, packed (lab/benchmarks/attention.py, Zen 4)
RESULT_CYCLES, PACKED_CYCLES = 1.9, 0.55
INTERLEAVED, BYTE_CYCLES = 4, 0.4  # of native/templates/integers/channels_last.h (Zen 3, 24 to 960 channels: 0.25 to 0.56)
# Of a result: sums and products of two values of bytes (802,816 sums: 0.6 on a Zen 4, 0.73 on a Zen 3), and what a sum takes in the store
# of a convolution (Zen 4: 64 -> 256 channels of 56x56 take 93 us longer)
PAIR_CYCLES, ADDED_CYCLES = 0.65, 0.43
STORED_CYCLES = 4.0  # of 16 sums that become bytes
PLANE_ROW_CYCLES = 200  # of a row of outputs of a pool of bytes in planes (Zen 3: 3x3 with stride 2, rows of 13 to 56)
# Of a vector of weights of four bits: what a shift or look-up takes of a multiply-add's time, and rows that share them
# (templates/loops/few_bits.h; 1, 2, 4 and 12 rows of 4096 x 4096 take 1.8, 2.5, 4.7 and 15 cycles a vector, Zen 4)
DECODED_OPERATIONS, TILE_ROWS = 0.5, 6
# what a row takes of a multiply-add's time if it is bytes, and taking words apart (templates/loops/few_bytes.h; 1 to 128 rows, Zen 4)
ROUNDED_ROW, ROUNDED_WORDS = 0.47, 0.4
MIN_PART_BYTES = 16 << 10  # of a thread (native/operators/operators.c)
ON_ONE_THREAD = {
    "ArgMax", "ArgMin", "Cast", "Concat", "CumSum", "Dequantize", "GatherElements", "GridSample", "IntegerMeans",
    "IntegerPair", "IntegerPool", "Pad",
    "Quantize", "QuantizeAffine", "Recurrent", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Table", "Take", "TopK",
}  # fmt: skip
# divided in the order of their elements in memory
IN_ORDER = {
    "Add", "Affine", "AveragePool", "Clip", "Div", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Mul", "Relu", "Reorder", "Sub", "Tanh",
}  # fmt: skip
_ROWS = {"LRN": "local", "LayerNormalization": "standard", "LogSoftmax": "log_softmax", "ReduceL2": "length", "Softmax": "softmax"}


def _loops_unit(on: Machine, tensor: Tensor) -> Unit | None:
    """The unit that runs elementwise loops over a tensor; those over bytes are instances of the same targets."""
    return next(filter(None, map(on.unit, loop_targets(DTYPES.get(tensor.dtype.name, "f32")))), None)


def reordering_seconds(tensor: Tensor, on: Machine) -> float:
    """Seconds of a layout conversion: its reads and writes, and log2(lanes) shuffles per vector on the machine's widest unit. Bytes of more
    channels than are interleaved move one by one."""
    if tensor.dtype.itemsize == 1 and tensor.shape[1] > INTERLEAVED:
        return tensor.nbytes * BYTE_CYCLES / on.core.frequency_hz.value
    unit = _loops_unit(on, tensor)
    lanes = unit.vector_bytes // tensor.dtype.itemsize if unit else 1
    elements = tensor.nbytes // tensor.dtype.itemsize
    shuffles = elements / lanes * max(1.0, log2(lanes))
    return _moved_seconds(on, tensor.nbytes, tensor.nbytes) + shuffles / on.core.frequency_hz.value


def transposing_seconds(node: Node, graph: Graph, on: Machine) -> float:
    """Seconds of a Transpose, by its attribute `blocks`, without what every operator waits for."""
    moved = _moved_seconds(on, graph.tensors[node.inputs[0]].nbytes, graph.tensors[node.output].nbytes)
    return moved + _passing_cycles(node, graph, on) / on.core.frequency_hz.value


def _moved_seconds(on: Machine, read: int, written: int) -> float:
    """Seconds to read bytes that another layer wrote, and to write bytes that another layer will read."""
    level = next((one for one in on.levels if one.size_bytes >= read + written), on.memory)
    cycles = read / level.read_bytes_per_cycle.value + written / level.write_bytes_per_cycle.value
    return cycles / on.core.frequency_hz.value


def pool_seconds(node: Node, graph: Graph, on: Machine, block: int) -> float:
    """Seconds of a pool's two passes in L1 for each row of outputs: down the columns of the input, then along the row. With channels in
    blocks, taps accumulate in one register: one latency per vector and tap."""
    x, y = graph.tensors[node.inputs[0]], graph.tensors[node.output]
    (*others, along), level = node.attributes["kernel_shape"], on.levels[0]
    down = prod(others)
    if block > 1 and (unit := _loops_unit(on, y)):
        vectors = y.nbytes / min(unit.vector_bytes, block * y.dtype.itemsize)
        return float(vectors * down * along * unit.fma_latency_cycles.value / on.core.frequency_hz.value)
    if node.op == "IntegerPool":
        return y.nbytes // y.shape[-1] * PLANE_ROW_CYCLES / on.core.frequency_hz.value
    row = y.nbytes // y.shape[-1]  # bytes of one column of all rows of outputs
    read, written = row * (down * x.shape[-1] + (along + 1) * y.shape[-1]), row * (x.shape[-1] + y.shape[-1])
    cycles = read / level.read_bytes_per_cycle.value + written / level.write_bytes_per_cycle.value
    return float(cycles / on.core.frequency_hz.value)


def activating_seconds(node: Node, graph: Graph, on: Machine) -> float:
    """Seconds of a node's activation: fused into the node, or the node itself."""
    if node.op in INTEGER_LAYERS:
        return _rounding_seconds(node, graph, on)
    found = None if "reference" in node.attributes else node.attributes.get("activation") or activation_of(node)
    if not found or (y := graph.tensors[node.output]).dtype.name not in DTYPES:
        return 0.0
    rows, item = int(np.prod(y.shape[:2])) if len(y.shape) > 2 else 1, y.dtype.itemsize
    name = found[0] if isinstance(found, tuple) else found
    cycles = activation_cycles(on, name, DTYPES[y.dtype.name], item, rows, y.nbytes // item // rows)
    return cycles / on.core.frequency_hz.value


def _rounding_seconds(node: Node, graph: Graph, on: Machine) -> float:
    """Seconds of an integer layer's numbers that become bytes: their activation, in float32."""
    sums, y = node.attributes["sums"], graph.tensors[node.output]
    if sums.factors is None:
        return 0.0
    name = sums.activation[0] if isinstance(sums.activation, tuple) else sums.activation
    rows = int(np.prod(y.shape[:2])) if len(y.shape) > 2 else 1
    return activation_cycles(on, name, "f32", np.dtype(np.float32).itemsize, rows, y.nbytes // rows) / on.core.frequency_hz.value


def _moving(node: Node, graph: Graph, on: Machine, buffers: Buffers) -> float:
    """Seconds of a node's data movement and loops that its plan does not include."""
    if _is_planned(node):
        adds = "pair" in node.attributes
        added = ADDED_CYCLES * graph.tensors[node.output].nbytes if adds else 0.0
        moved = _moved_seconds(on, sum(graph.tensors[name].nbytes for name in node.inputs[1 if adds else RESIDUAL_INPUT :]), 0)
        return moved + added / on.core.frequency_hz.value
    if node.op == "Reorder":
        return reordering_seconds(graph.tensors[node.output], on)
    given = [name for name in node.inputs if name and name not in graph.constants]
    if node.op == "Concat":
        copied = sum(graph.tensors[name].nbytes for name in given if (node.output, name) not in buffers.joined)
        return _moved_seconds(on, copied, copied)
    moved = _moved_seconds(on, *(sum(graph.tensors[name].nbytes for name in names if name) for names in (given, node.outputs)))
    if "reference" in node.attributes:
        return moved
    if "kernel_shape" in node.attributes:
        return moved + pool_seconds(node, graph, on, node.attributes.get("blocks", (1, 1))[0])
    return moved + _passing_cycles(node, graph, on) / on.core.frequency_hz.value


def _passing_cycles(node: Node, graph: Graph, on: Machine) -> float:
    """Core cycles of a row operator, Take or transposition, without its data movement; 0 for other operators."""
    if node.op == "Recurrent":
        return _stepping_cycles(node, graph, on)
    if node.op == "IntegerProducts":
        return _byte_products_cycles(node, graph, on)
    if node.op == "IntegerSoftmax":
        rows, size = prod(graph.tensors[node.output].shape[:-1]), graph.tensors[node.output].shape[-1]
        unit = _loops_unit(on, Tensor((), np.dtype(np.float32)))
        return 0.0 if unit is None else float(rows * -(-size // unit.lanes(4)) * rows_kinds()["softmax"][1] / unit.vector_rate("f32", 4))
    if node.op == "FewBits":
        return few_bits_seconds(node, graph, on) * on.core.frequency_hz.value
    if node.op == "IntegerPair":
        return PAIR_CYCLES * graph.tensors[node.output].nbytes
    x, y = (graph.tensors[next(filter(None, names))] for names in (node.inputs, node.outputs))  # what nothing reads has no name
    if y.dtype.name not in DTYPES or not y.nbytes or (unit := _loops_unit(on, y)) is None:
        return 0.0
    lanes, elements = unit.vector_bytes // y.dtype.itemsize, y.nbytes // y.dtype.itemsize
    if (kind := _ROWS.get(node.op)) is not None:
        axes = {"LRN": (1,)}.get(node.op) or node.attributes.get("axes") or range(node.attributes["axis"], len(x.shape))
        rows, size, beside = prod(x.shape[: axes[0]]), prod(x.shape[axis] for axis in axes), prod(x.shape[axes[-1] + 1 :])
        operations, reductions = rows_kinds()[kind][1:]
        vectors = unit.vector_rate(DTYPES[y.dtype.name], y.dtype.itemsize)
        if beside > 1:
            return float(rows * size * -(-beside // lanes) * operations / vectors)
        waiting = reductions * 2 * log2(lanes) * unit.fma_latency_cycles.value
        return float(rows * (-(-size // lanes) * operations / vectors + waiting))
    if node.op == "Attention":
        return _attending_cycles(node, graph, on, unit)
    if node.op == "Take" and prod(x.shape[node.attributes["axis"] + 1 :]) == 1:
        return float(elements * (2 if len(node.inputs) == 2 else 3 * len(graph.constants[node.inputs[2]])) / unit.loads_per_cycle.value)
    if node.op == "Transpose" and max(node.attributes.get("blocks", (1, 1))) == 1:
        moved = [axis for axis in node.attributes["perm"] if x.shape[axis] > 1]
        if moved[-1:] != [axis for axis, size in enumerate(x.shape) if size > 1][-1:]:
            runs = elements / x.shape[max(moved)]  # rows of the input, adjacent ones transposed together
            return float(runs * -(-x.shape[max(moved)] // lanes) * log2(lanes))
    return 0.0


def _byte_products_cycles(node: Node, graph: Graph, on: Machine) -> float:
    """Core cycles of products of bytes of two values: four multiply-adds of a lane at once, the store of a vector, and words made of b."""
    (*heads, rows, k), columns = graph.tensors[node.inputs[0]].shape, graph.tensors[node.output].shape[-1]
    unit = next(filter(None, (on.unit(row.target) for row in products_of_bytes())), None)
    if unit is None:
        return 0.0
    vectors = -(-columns // unit.lanes(4))
    return float(prod(heads) * (rows * vectors * (-(-k // 4) / unit.vector_rate("s8", 4) + STORED_CYCLES) + k * columns * BYTE_CYCLES))


def few_bits_seconds(node: Node, graph: Graph, on: Machine) -> float:
    """Seconds of a FewBits on one thread: for each vector of weights a multiply-add a row, and a shift and a look-up for each tile of rows;
    or weights from the cache that holds them."""
    x, weights = (graph.tensors[name] for name in node.inputs[:2])
    if (unit := _loops_unit(on, x)) is None:
        return inf
    lanes, columns = unit.lanes(x.dtype.itemsize), node.attributes["columns"]
    k = x.shape[-1]
    rows = x.nbytes // x.dtype.itemsize // k
    in_bytes = node.attributes["rounds"] and any(on.unit(row.target) for row in products_of_bytes())
    operations = rows * ROUNDED_ROW + ROUNDED_WORDS if in_bytes else rows + 2 * DECODED_OPERATIONS * -(-rows // TILE_ROWS)
    products = columns * k / lanes * operations / unit.vector_rate("f32", x.dtype.itemsize)
    level = next((one for one in on.levels[1:] if one.size_bytes >= weights.nbytes), on.memory)
    return float(max(products, weights.nbytes / level.read_bytes_per_cycle.value) / on.core.frequency_hz.value)


def _stepping_cycles(node: Node, graph: Graph, on: Machine) -> float:
    """Core cycles of a recurrent layer: in each step the weights move from the cache that holds them, and batch products of a row wait for
    each other's multiply-adds."""
    sums, weights = (graph.tensors[name] for name in node.inputs[:2])
    unit, batch_first = _loops_unit(on, sums), node.attributes["batch_first"]
    if unit is None:
        return 0.0
    steps, batch = sums.shape[1::-1] if batch_first else sums.shape[:2]
    level = next((one for one in on.levels[1:] if one.size_bytes >= weights.nbytes), on.memory)
    rate = unit.vector_rate(DTYPES[sums.dtype.name], sums.dtype.itemsize)
    products = batch * weights.nbytes / unit.vector_bytes / rate
    return float(steps * max(products, weights.nbytes / level.read_bytes_per_cycle.value))


def _attending_cycles(node: Node, graph: Graph, on: Machine, unit: Unit) -> float:
    """Core cycles of an Attention, whose operands may be transposed; of bf16 two elements are multiplied at once."""
    shapes = [graph.tensors[name].shape for name in node.inputs[:3]]
    q, k, v = ([shape[axis] for axis in order or range(len(shape))] for shape, order in zip(shapes, node.attributes["orders"], strict=True))
    tensor = graph.tensors[node.output]
    rate, item = DTYPES[tensor.dtype.name], tensor.dtype.itemsize
    lanes, each = unit.lanes(item), 1 / unit.vector_rate(rate, item)
    vectors = -(-k[-1] // lanes)
    products = (vectors * q[-1] + k[-1] * -(-v[-1] // lanes)) * each
    if "narrow" in node.attributes:
        pairs = next(filter(None, map(on.unit, loop_targets("bf16"))))
        products *= unit.vector_rate(rate, item) / (2 * pairs.vector_rate("bf16", SIZES["bf16"]))
    rows = prod(q[:-2]) * (-(-q[-2] // ATTENTION_GROUP) * ATTENTION_GROUP)
    results = -(-k[-1] // ATTENTION_KEYS) * -(-v[-1] // lanes) * lanes * RESULT_CYCLES
    packed = prod(q[:-2]) * -(-q[-2] // ATTENTION_ROWS) * lanes * (vectors * q[-1] + k[-1] * -(-v[-1] // lanes)) * PACKED_CYCLES
    return float(rows * (products + vectors * rows_kinds()["softmax"][1] * each + results) + packed)


def _is_planned(node: Node) -> bool:
    """Whether its plan has all that moves but residuals: of integer layers, where its kernels' stores make the result."""
    planned = node.op in ("Conv", "ConvOfTwo", "Linear", "MatMul") or (node.op in INTEGER_LAYERS and writes_bytes(node))
    return planned and "reference" not in node.attributes


def threads_of(node: Node, graph: Graph, threads: int) -> int:
    """The threads that a node without a plan is divided among."""
    if node.op in ON_ONE_THREAD or "reference" in node.attributes:
        return 1
    most = max(graph.tensors[name].nbytes for name in (*node.inputs, *node.outputs) if name in graph.tensors)
    return max(1, min(threads, most // MIN_PART_BYTES))


def _is_in_order(node: Node) -> bool:
    """Whether threads divide a node's result in the order of memory, depthwise layers their groups."""
    problem = node.attributes.get("problem")
    return node.op in IN_ORDER if not isinstance(problem, Conv) else problem.groups == problem.channels > 1


def _read_by(node: Node, graph: Graph, buffers: Buffers) -> set[str]:
    """The values that a node reads; parts of a concatenation that were computed in it are not read."""
    given = {name for name in node.inputs if name in graph.tensors and name not in graph.constants}
    return given - {name for name in given if (node.output, name) in buffers.joined}


def crossing_seconds(node: Node, graph: Graph, on: Machine, threads: int, own: int, buffers: Buffers) -> float:
    """Seconds in which `own` of `threads` threads wait for lines that other threads have written."""
    shared, written = next((level for level in on.levels if level.shared), None), on.core.written_line_cycles
    if threads == 1 or shared is None or written is None:
        return 0.0
    names = _read_by(node, graph, buffers)
    if own == threads and _is_in_order(node):
        names -= {name for one in graph.nodes if _is_in_order(one) for name in one.outputs}
    read = sum(graph.tensors[name].nbytes for name in names)
    at_once = max(1.0, shared.latency_cycles.value * shared.read_bytes_per_cycle.value / on.line_bytes)
    return read / on.line_bytes * (threads - 1) / threads / own * written.value / at_once / on.core.frequency_hz.value


def other_seconds(node: Node, graph: Graph, on: Machine, buffers: Buffers, threads: int = 1) -> float:
    """Seconds of a node without its plan. Its code and structs come from memory, like its weights, before it computes; a view computes
    nothing."""
    own = threads if _is_planned(node) else threads_of(node, graph, threads)
    if view_offset(graph, node) is not None:
        return activating_seconds(node, graph, on) / own
    if node.op == "Concat" and not _read_by(node, graph, buffers):
        return 0.0
    waiting = START_LINES * on.memory.latency_cycles.value
    if own > 1 and not _is_planned(node):
        waiting += fork_join_cycles(on, own)
    divided = _moving(node, graph, on, buffers) + activating_seconds(node, graph, on)
    return divided / own + crossing_seconds(node, graph, on, threads, own, buffers) + waiting / on.core.frequency_hz.value


def activation_cycles(machine: Machine, activation: str, dtype: str, element_bytes: int, rows: int, columns: int) -> float:
    """Cycles of one core for rows of results, tile by tile in L1 (`native/operators/loops.h`); 0 for an activation that stores compute, or
    if the machine has no target of these loops. A row is the plane of a filter, or a contiguous piece of results: rows of tiles end in
    partial vectors about where planes do, so every plan of a problem costs the same.

    Assumptions: every operation is as fast as a multiply-add, even a division (no machine file has its cost); FP64, whose exponential is
    the C library's, takes as many operations.
    """
    operations = epilogue_operations()[activation]
    unit = next(filter(None, map(machine.unit, loop_targets(dtype))), None)
    if operations == 0 or unit is None:
        return 0.0
    each = max(operations / unit.vector_rate(dtype, element_bytes), 1 / unit.loads_per_cycle.value, 1 / unit.stores_per_cycle.value)
    return rows * -(-columns // unit.lanes(element_bytes)) * each
