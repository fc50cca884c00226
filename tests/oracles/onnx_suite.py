# SPDX-License-Identifier: Apache-2.0
"""ONNX's own backend tests through `pysim.load`: node by node, models, the operators of PyTorch, and the networks that the package holds.

    python tests/oracles/onnx_suite.py [--peer] [--list] [--match TEXT]

Each case is equal (within the tolerance that it states), refused (a PysimError), or wrong. A refusal should name an operator and a node of
the model; of those that name none, the names are listed. --peer runs the same cases by ONNX Runtime. A result that
differs where an operator draws random numbers is counted as random. --list writes what came of each case.
"""

import argparse
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import base
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted", "real")
RANDOM = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_DATA = Path(onnx.__file__).parent.parent


class Came(NamedTuple):
    case: str
    what: str  # equal, refused, wrong, random
    why: str = ""
    named: bool = True  # a refusal that names an operator of the model, and a node


def cases(match: str = "") -> list[Any]:
    base.process_snippet = lambda operator, name, export: (name, "")  # reads source for ONNX's pages, a tenth of the time
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, where the package computes its expected results
        return [one for kind in KINDS for one in load_model_tests(kind=kind) if match in one.name]


def content_of(case: Any) -> bytes:
    if case.model is not None:
        return bytes(case.model.SerializeToString())
    path = _DATA / case.url if case.url else Path(case.model_dir) / "model.onnx"
    return path.read_bytes()


def array_of(path: Path, kind: Any) -> Any:
    """The array, or the list of arrays, of a file of test data."""
    content = path.read_bytes()
    if kind.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if kind.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return numpy_helper.to_array(onnx.TensorProto.FromString(content))


def data_of(case: Any, model: onnx.ModelProto) -> list[tuple[list[Any], list[Any]]]:
    """(inputs, expected outputs) of each data set."""
    if case.data_sets is not None:
        return [tuple([_plain(one) for one in side] for side in both) for both in case.data_sets]
    held = {tensor.name for tensor in model.graph.initializer}
    inputs, outputs = [value for value in model.graph.input if value.name not in held], list(model.graph.output)
    if case.url:
        given = [Runner.generate_dummy_data(value, seed=0, name=case.model_name, random=False) for value in inputs]
        prefix = str(_DATA / case.url).removesuffix(".onnx")
        return [(given, [array_of(Path(f"{prefix}_output_{at}.pb"), value.type) for at, value in enumerate(outputs)])]
    folders = sorted(Path(case.model_dir).glob("test_data_set_*"))
    return [
        tuple([array_of(folder / f"{side}_{at}.pb", value.type) for at, value in enumerate(of)] for side, of in
              (("input", inputs), ("output", outputs)))
        for folder in folders
    ]  # fmt: skip


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def by_pysim(content: bytes, given: dict[str, Any], folder: Path) -> tuple[Any, ...]:
    import pysim

    path = folder / "model.onnx"
    path.write_bytes(content)
    model = pysim.load(path)
    found = model(**{name: array if isinstance(array, list) else np.asarray(array) for name, array in given.items()})
    return found if isinstance(found, tuple) else (found,)


def by_onnxruntime(content: bytes, given: dict[str, Any], folder: Path) -> tuple[Any, ...]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return tuple(ort.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(None, given))


def came_of(case: Any, run: Any, refusals: tuple[type[Exception], ...], folder: Path) -> Came:
    content = content_of(case)
    model = onnx.load_model_from_string(content)
    held = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in held]
    operators = operators_of(model.graph) | {node.op_type for one in model.functions for node in one.node}
    try:
        for inputs, wanted in data_of(case, model):
            given = dict(zip(names, inputs, strict=False))
            found = run(content, {name: array for name, array in given.items() if array is not None}, folder)
            Runner.assert_similar_outputs(wanted, found, case.rtol, case.atol)
    except refusals as error:
        told = str(error)
        return Came(case.name, "refused", told, any(op in told for op in operators) and told != "operator")
    except (AssertionError, TypeError) as error:
        what = "random" if operators & {*RANDOM} else "wrong"
        return Came(case.name, what, " ".join(str(error).split())[:300])
    return Came(case.name, "equal")


def operators_of(graph: Any) -> set[str]:
    inner = (operators_of(one.g) for node in graph.node for one in node.attribute if one.HasField("g"))
    return {node.op_type for node in graph.node}.union(*inner)


def counted(match: str = "", peer: bool = False) -> list[Came]:
    from pysim.errors import PysimError

    run, refusals = (by_onnxruntime, (Exception,)) if peer else (by_pysim, (PysimError,))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx's definitions let NumPy warn
        return [came_of(case, run, refusals, Path(folder)) for case in cases(match)]


def main() -> None:
    parser = argparse.ArgumentParser(description="ONNX's backend tests through pysim.load")
    parser.add_argument("--match", default="", help="only cases whose name has this text")
    parser.add_argument("--peer", action="store_true", help="by ONNX Runtime instead")
    parser.add_argument("--list", action="store_true", help="what came of each case that is not equal")
    asked = parser.parse_args()
    came = counted(asked.match, asked.peer)
    for one in came if asked.list else [one for one in came if one.what == "wrong"]:
        if one.what != "equal":
            print(one.what, one.case, one.why, sep="\t")
    kinds = Counter(one.what for one in came)
    unnamed = [one.case for one in came if one.what == "refused" and not one.named]
    print(f"{len(came)} cases:", ", ".join(f"{count} {what}" for what, count in sorted(kinds.items())))
    print(f"refusals that name no operator: {len(unnamed)}", *unnamed[:20])
    sys.exit(bool(kinds["wrong"]))


if __name__ == "__main__":
    main()
