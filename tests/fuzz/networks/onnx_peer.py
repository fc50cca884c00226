# SPDX-License-Identifier: Apache-2.0
"""Single ONNX nodes, generated: all operators x attributes x opsets x types, constant or given inputs, here and by ONNX Runtime.

    python tests/fuzz/networks/onnx_peer.py --nodes 50000 --seed 1 [--op GRU]

A result is equal (whole numbers alike, the others within the rounding of their type), or refused with one sentence that names the
operator and the node, or wrong. Nodes that ONNX Runtime refuses are counted and not compared. `DEVIATIONS` lists where it is ONNX Runtime
that does not follow ONNX's text, each with its reason; there a result must be equal to what the text says, and is counted apart.
"""

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx_recipes_fused
import onnx_recipes_layers
import onnx_recipes_math
import onnx_recipes_shape
import onnxruntime as ort
from onnx_case import Case, Make, Refused
from onnx_deviations import DEVIATIONS
from onnx_text import Node

from pysim.calibration import host
from pysim.errors import PysimError
from pysim.network.execution import Network
from pysim.onnx import reading

STANDARD: dict[str, Callable[[Make], Case]] = onnx_recipes_math.RECIPES | onnx_recipes_shape.RECIPES | onnx_recipes_layers.RECIPES
FUSED = onnx_recipes_fused.RECIPES
PLACES = [("", op) for op in STANDARD] + [("com.microsoft", op) for op in FUSED]
_ROUNDING = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 3e-5, "float64": 1e-9}
_WIDE = ("Gelu", "GroupNormalization", "HardSwish", "LayerNormalization", "RMSNormalization",
         "Shrink")  # fmt: skip  # whose sums in float64 are float32's in ONNX Runtime
_ELEMENTS = {*onnx_recipes_math.UNARY, *onnx_recipes_math.BINARY, *onnx_recipes_math.VARIADIC}
_BY_ELEMENT = (_ELEMENTS | {"Cast", "CastLike", "Clip", "Mod", "Where"}) - {"Gelu", "HardSwish", "Mean", "Mish", "Sum"}  # they add
_SUMS = ("Mean", "Sum")  # rounded by the size of their operands, in which order they add them


class Verdict(NamedTuple):
    what: str  # equal, refused, wrong, deviates, unnamed (a refusal), or not compared: peer
    why: str = ""


def case_of(seed: int, op: str = "") -> Case:
    """The first node that can be made from a seed."""
    places = [place for place in PLACES if op in ("", place[1])]
    for attempt in range(100):
        rng = np.random.default_rng((seed, attempt))
        domain, name = places[int(rng.integers(len(places)))]
        try:
            make = Make(int(rng.integers(1 << 31)), name, domain)
            return (FUSED if domain else STANDARD)[name](make)
        except (Refused, onnx.defs.SchemaError, IndexError):
            continue
    raise Refused


def by_onnxruntime(content: bytes, given: dict[str, Any]) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return [_typed(array, one.type) for array, one in zip(session.run(None, given), session.get_outputs(), strict=True)]


def _typed(array: Any, kind: str) -> Any:
    """The array as what it is: eight-bit floats come as bytes."""
    kind = kind.removeprefix("tensor(").removesuffix(")")
    return array.view(getattr(ml_dtypes, kind.replace("float8", "float8_"))) if kind.startswith("float8") else array


def declared(content: bytes, found: list[Any]) -> onnx.ModelProto:
    """The model with the shapes of its outputs, as exporters declare them."""
    model = onnx.ModelProto.FromString(content)
    for value, array in zip(model.graph.output, found, strict=True):
        shape = onnx.helper.make_tensor_value_info(value.name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        value.CopyFrom(shape)
    return model


def verdict(case: Case) -> Verdict:
    try:
        wanted = by_onnxruntime(case.content, case.given)
    except Exception as error:  # its own kinds
        return Verdict("peer", str(error))
    if not all(isinstance(array, np.ndarray) and array.dtype.kind != "O" for array in wanted):
        return Verdict("peer", "no array")
    if case.op in ("GRU", "LSTM", "RNN") and not all(np.isfinite(array).all() for array in wanted):
        return Verdict("peer", "an activation without bounds overflows")
    came = compared(case, wanted)
    if came.what == "wrong" or (came.what in ("refused", "unnamed") and "declares the value" in came.why):
        node = node_of(case)
        for deviation in DEVIATIONS.get(case.op, ()):
            if deviation.holds(node) and compared(case, deviation.right(node)).what == "equal":
                return Verdict("deviates", deviation.reason)
    return came


def compared(case: Case, wanted: list[Any]) -> Verdict:
    """What comes of the node if these results are right."""
    try:
        model = Network(reading.graph_of(declared(case.content, wanted), "a node"), host.runnable("host"))
        found = model(**case.given)
    except PysimError as error:
        told = str(error)
        return Verdict("refused" if '"it' in told and "\n" not in told else "unnamed", told)
    operands = arrays_of(case) if case.op in _SUMS else []
    for y, right in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        if fault := differs(np.asarray(y), right, case.op in _BY_ELEMENT, case.op, operands):
            return Verdict("wrong", fault)
    return Verdict("equal")


def node_of(case: Case) -> Node:
    (node,) = onnx.ModelProto.FromString(case.content).graph.node
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    return Node(attributes, arrays_of(case), case.opset, case.op, len(case.outputs), case.content, case.given, by_onnxruntime)


def arrays_of(case: Case) -> list[Any]:
    """The node's inputs in order; None for those that are left out."""
    graph = onnx.ModelProto.FromString(case.content).graph
    known = case.given | {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    return [known.get(name) for name in graph.node[0].input]


def differs(found: Any, right: Any, by_element: bool, op: str, operands: Sequence[Any] = ()) -> str:
    """What is wrong with a result, in words; "" where nothing is. `operands`: those of a sum."""
    if found.shape != right.shape or found.dtype != right.dtype:
        return f"{found.dtype}{list(found.shape)} for {right.dtype}{list(right.shape)}"
    if right.dtype.name not in _ROUNDING:
        off = found.view(f"u{found.itemsize}") != right.view(f"u{right.itemsize}") if right.dtype.kind not in "biu" else found != right
        apart = np.abs(found.astype(np.float64) - right.astype(np.float64))
        if op in ("QLinearConv", "QLinearMatMul", "QuantizeLinear", "DynamicQuantizeLinear") and apart.max(initial=0) <= 1:
            return ""  # ties of a quotient
        return "" if not off.any() else _told(off, found, right)
    if op in _WIDE and right.dtype == np.float64:
        return differs(found.astype(np.float32), right.astype(np.float32), False, "")
    wide, mine = right.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wide) & np.isfinite(mine)
    largest = np.abs(np.where(finite, wide, 0))
    least = float(np.finfo(right.dtype).tiny) if right.dtype.name != "bfloat16" else 1e-38
    half = right.dtype == np.float16
    floor = 8 * least if op in ("Cast", "CastLike") else 1e-3 if by_element else 0.1 if half else 1e-2
    scale = largest + floor if by_element else max(*(_largest(one) for one in (wide, *operands)), floor)
    with np.errstate(invalid="ignore"):
        near = np.abs(mine - wide) <= _ROUNDING[right.dtype.name] * scale
    off = ~np.where(finite, near, (mine == wide) | (np.isnan(mine) & np.isnan(wide)))
    return _told(off, found, right) if off.any() else ""


def _largest(array: Any) -> float:
    """Of its finite numbers."""
    wide = np.abs(array.astype(np.float64))
    return float(wide[np.isfinite(wide)].max(initial=0))


def _told(off: Any, found: Any, right: Any) -> str:
    at = np.argmax(off)
    return f"{off.sum()} of {off.size} elements, e.g. {found.flat[at]} for {right.flat[at]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="generated ONNX nodes here and by ONNX Runtime")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--op", default="", help="of this operator alone")
    parser.add_argument("--show", default="wrong,unnamed", help="which verdicts are printed")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")  # onnx's definitions let NumPy warn
    came: Counter[str] = Counter()
    of: Counter[tuple[str, str]] = Counter()
    for seed in range(asked.seed, asked.seed + asked.nodes):
        case = case_of(seed, asked.op)
        try:
            what, why = verdict(case)
        except Exception as error:
            what, why = "wrong", f"raised {type(error).__name__}: {error}"
        came[what] += 1
        of[case.op, what] += 1
        if what in asked.show.split(","):
            print(what, seed, case.how, "|", why, flush=True)
    print(f"{sum(came.values())} nodes:", ", ".join(f"{count} {what}" for what, count in sorted(came.items())))
    for what in ("wrong", "unnamed", "refused", "deviates"):
        if counts := {op: count for (op, kind), count in sorted(of.items()) if kind == what}:
            print(f"{what}:", ", ".join(f"{op} {count}" for op, count in counts.items()))
    if never := [op for _, op in PLACES if not asked.op and not of[op, "equal"]]:
        print("never equal:", *never)
    sys.exit(bool(came["wrong"] or came["unnamed"]))


if __name__ == "__main__":
    main()
