# SPDX-License-Identifier: Apache-2.0
"""A whole network checked and timed: beside its own graph in float64, and beside ONNX Runtime, and on one thread im2col and OpenBLAS in the
same graph, in the same run.

What is compared are the graph's outputs, and the operands of a Softmax that makes one: behind it large differences look small. An error is
the largest difference from the float64 result over the largest of its magnitudes. LARGEST_ERROR is far above what the rounding of a hundred
layers in float32 adds up to (each about 1e-6 of its result), and far below what a wrong operand does.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pysim.comparison.compare import CERTAIN, at_clock, core_then, target_of
from pysim.errors import MissingError
from pysim.machine.cpu import Machine
from pysim.measure.clock import CpuClock, Timed, interleave
from pysim.measure.speed import Speedometer
from pysim.network.execution import Network
from pysim.network.graph import Array, Graph, Tensor
from pysim.network.plan import Layer
from pysim.onnx import reading
from pysim.onnx.im2col_peer import Im2colNetwork
from pysim.onnx.model import OnnxFile
from pysim.record.measurement import CoreThen

if TYPE_CHECKING:
    import onnx

LARGEST_ERROR = 1e-4
BUDGET_SECONDS = 5.0  # of timing, after which there are fewer samples; more if `min_seconds` are
_SEED = 0


class TimedLayer(msgspec.Struct, frozen=True):
    node: str
    op: str
    problem: str | None
    fused: tuple[str, ...]
    predicted_seconds: float | None
    measured_seconds: float
    plan: str | None = None


class ModelComparison(msgspec.Struct, frozen=True):
    """`predicted_seconds` of all layers, at the clock when timed that `core` has; `errors` by who computed, "pysim" first; `missing` why a
    peer did not run."""

    model: str
    machine: str
    threads: int
    correct: bool
    max_error: float
    errors: dict[str, float]
    predicted_seconds: float
    measured_seconds: float | None
    samples: int
    peers: dict[str, float]
    missing: dict[str, str]
    arena_bytes: int
    layers: tuple[TimedLayer, ...]
    core: CoreThen | None = None
    layouts: tuple[str, ...] = ()  # changes of layout between layers


def compare(
    path: str | Path,
    on: Machine,
    threads: int = 1,
    peers: bool = True,
    min_seconds: float = 0.2,
    batch: int | None = None,
    show: Callable[[str], object] = lambda text: None,
) -> ModelComparison:
    """Checks a model file and times it, alone or beside ONNX Runtime; nothing wrong is timed. `show` gets each step."""
    file = OnnxFile(Path(path))
    name = file.name
    show(f"{name}: reading the model and preparing its weights")
    proto = _with_logits(file.weighted(batch, _SEED))
    content = proto.SerializeToString() if peers else b""
    graph = reading.graph_of(proto, name)
    model = Network(graph, on, threads)
    feeds = _inputs(model.inputs)
    show(f"{name}: the same network in float64, for the errors")
    exact = _outputs(Network(widened(graph), on, threads)(**{k: _wide(x) for k, x in feeds.items()}))
    calls: dict[str, Any] = {"pysim": partial(model, **feeds)}
    missing = {}
    if peers:
        show(f"{name}: preparing other libraries")
        try:
            calls["onnxruntime"] = _onnxruntime(content, feeds, threads)
        except MissingError as error:
            missing["onnxruntime"] = str(error)
    if peers and threads == 1:
        try:
            im2col = partial(Im2colNetwork(graph, on), **feeds)
            im2col()
            calls["im2col_openblas"] = im2col
        except MissingError as error:
            missing["im2col_openblas"] = str(error)
    errors = {who: _error(_outputs(call()), exact) for who, call in calls.items()}
    correct = errors["pysim"] <= LARGEST_ERROR
    target = next((target_of(layer.plan) for layer in model.plan.layers if layer.plan), "")
    speedometer = partial(Speedometer, target, threads) if target else None
    show(f"{name}: timing")
    budget = max(BUDGET_SECONDS, 5 * min_seconds)
    limits: dict[str, Any] = {"min_seconds": min_seconds, "budget_seconds": budget, "certain": CERTAIN}
    timed = interleave(calls, CpuClock(threads), speedometer=speedometer, **limits) if correct else Timed({}, {})
    core = core_then(on, timed.speed, target, timed.left_out)
    medians = {who: float(np.median(seconds)) for who, seconds in timed.samples.items()}
    layers = tuple(_layer(one, core) for one in model.profile(*feeds.values())) if correct else ()
    return ModelComparison(
        name, on.name, threads, correct, errors["pysim"], errors, sum(_seconds(layer, core) for layer in model.plan.layers),
        medians.pop("pysim", None), len(timed.samples.get("pysim", ())), medians, missing, model.plan.buffers.nbytes, layers, core,
        model.plan.layouts,
    )  # fmt: skip


def _seconds(layer: Layer, core: CoreThen | None) -> float:
    """What is predicted of a layer, at the clock when timed."""
    if core is None:
        return layer.predicted_seconds
    planned = at_clock(layer.plan, core.clock_hz).seconds if layer.plan else 0.0
    return (planned or 0.0) + layer.other_seconds * core.machine_clock_hz / core.clock_hz


def widened(graph: Graph) -> Graph:
    """The same network in float64."""
    nodes = []
    for node in graph.nodes:
        problem = node.attributes.get("problem")
        nodes.append(node if problem is None else node.having(problem=msgspec.structs.replace(problem, dtype="f64")))
    tensors = {name: Tensor(one.shape, _wide(np.empty(0, one.dtype)).dtype) for name, one in graph.tensors.items()}
    return graph._replace(nodes=tuple(nodes), tensors=tensors, constants={name: _wide(array) for name, array in graph.constants.items()})


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def _inputs(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Normal random numbers, or zeros where an input is not a floating-point number."""
    rng = np.random.default_rng(_SEED)
    return {name: rng.standard_normal(one.shape).astype(one.dtype) if one.dtype.kind == "f" else np.zeros(one.shape, one.dtype)
            for name, one in tensors.items()}  # fmt: skip


def _outputs(found: Any) -> list[Array]:
    return list(found) if isinstance(found, tuple | list) else [found]


def _error(found: list[Array], exact: list[Array]) -> float:
    """The largest difference over the largest exact magnitude. NaN and infinities, those of results too large for their type included, must
    stand in the same places; the error is infinite otherwise. Magnitudes below the smallest normal number count as that."""
    worst = 0.0
    for one, right in zip(found, exact, strict=True):
        with np.errstate(over="ignore"):
            rounded = right.astype(one.dtype)
        finite = np.isfinite(rounded)
        if not np.array_equal(one[~finite], rounded[~finite], equal_nan=one.dtype.kind in "fc") or not np.isfinite(one[finite]).all():
            return math.inf
        smallest = float(np.finfo(one.dtype).tiny) if one.dtype.kind == "f" else 1.0
        scale = max(float(np.abs(right[finite]).max(initial=0.0)), smallest)
        worst = max(worst, float(np.abs(one[finite].astype(np.float64) - right[finite]).max(initial=0.0)) / scale)
    return worst


def _with_logits(model: "onnx.ModelProto") -> "onnx.ModelProto":
    import onnx

    outputs = {value.name: value for value in model.graph.output}
    for node in model.graph.node:
        if node.op_type == "Softmax" and node.output[0] in outputs and node.input[0] not in outputs:
            kind = outputs[node.output[0]].type.tensor_type.elem_type
            model.graph.output.append(onnx.helper.make_tensor_value_info(node.input[0], kind, None))
    return model


def _layer(timed: Any, core: CoreThen | None) -> TimedLayer:
    one = timed.layer
    problem, name = (one.plan.problem, one.plan.name) if one.plan else (None, None)
    return TimedLayer(one.node.name, one.node.op, problem, one.fused, _seconds(one, core), timed.seconds, name)


def _onnxruntime(content: bytes, feeds: dict[str, Array], threads: int) -> Any:
    """A call of ONNX Runtime on the model, all graph optimisations; MissingError where it is not here or refuses."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise MissingError(f"{error.name} is not installed: pip install onnxruntime") from None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry(
        "session.force_spinning_stop", "1"
    )  # after a call: its threads would spin on the CPUs of the next turn
    try:
        session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # each version has its own exceptions
        raise MissingError(f"ONNX Runtime {ort.__version__} refuses this model: {str(error).splitlines()[0]}") from None
    return partial(session.run, None, feeds)
