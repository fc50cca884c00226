# SPDX-License-Identifier: Apache-2.0
"""A planned network in one file: the graph, each layer's plan with its predicted cost, and the weights as the kernels read them.

The file is an uncompressed archive of NumPy's (`.npz`) with each array on a cache line, so that weights stay where the file is read to.
The archive's checksums are checked. "network" is a JSON document; values that JSON lacks are objects of
one field, which says what they are, such as {"array": "3"}, the array of that name. Nothing in a file is executed.

Prepared weights are bytes in an order that the build of the native library decides. So a file tells that build and the machine, and is
refused under another one; the model's own file stays what is kept.
"""

import hashlib
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np

from pysim.caches import once
from pysim.errors import ProblemError, printable
from pysim.file_io import written
from pysim.machine.cpu import Machine
from pysim.network.graph import Array, Graph, Node, Tensor
from pysim.network.halves.narrow import prepared_type
from pysim.network.integers.layers import INTEGER_LAYERS, IntegerLayer
from pysim.network.plan import Layer
from pysim.planner import planned
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.accuracy import Accuracy
from pysim.record.contract import Contract
from pysim.record.cost import Cost
from pysim.record.later import Later
from pysim.record.plan import Plan, Request
from pysim.record.schedule import Schedule
from pysim.runtime.cpu import aligned, library_path
from pysim.runtime.cpu_launch import Prepared
from pysim.runtime.integer_steps import Quantity, Sums

MAGIC = b"PK\x03\x04"  # with which archives begin, and no model of ONNX's does
_FORMAT = 3
_LOCAL_HEADER, _MOST_HEADER = 30, 1 << 12  # bytes of an archive's header of a member before its names, and of an array's
_ZIP64, _EXTRA = 20, 4  # bytes of the field that tells large sizes, and of the beginning of any field
_OWN, _LINE = 0x7079, 64  # this format's own field of that header; the size of a cache line
_OF_PLAN = (
    "state",
    "algorithm",
    "workspace_bytes",
    "assumed",
    "layout",
    "needs_finite",
    "error",
    "error_scale",
    "accuracy",
    "threads",
    "contract",
)


def is_saved(path: Path) -> bool:
    """Whether a file begins as one that `save` wrote."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


class _Arrays(Mapping[str, Array]):
    """The arrays of an npz file that was read to this memory. Each is checked by the archive's sum."""

    def __init__(self, archive: zipfile.ZipFile, memory: Array) -> None:
        self._members, self._memory = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}, memory

    def view(self, name: str) -> Array:
        """An array in the file's memory."""
        member = self._members[name]
        lengths = [
            int.from_bytes(self._memory[member.header_offset + at : member.header_offset + at + 2].tobytes(), "little") for at in (26, 28)
        ]
        start = member.header_offset + _LOCAL_HEADER + sum(lengths)
        content = memoryview(cast("Any", self._memory))[start : start + member.file_size]
        if member.compress_type != zipfile.ZIP_STORED or len(content) != member.file_size or zlib.crc32(content) != member.CRC:
            raise zipfile.BadZipFile(f"its array {name} is damaged")
        header = BytesIO(bytes(content[:_MOST_HEADER]))
        if np.lib.format.read_magic(header) != (1, 0):
            raise ValueError(f"its array {name} has another header")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(header)
        if dtype.hasobject:
            raise ValueError(f"its array {name} holds objects")
        array: Array = np.frombuffer(content, dtype, math.prod(shape), header.tell())
        return array.reshape(shape, order="F" if by_columns else "C")

    def __getitem__(self, name: str) -> Array:
        return np.array(self.view(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class Parts(NamedTuple):
    """What a network is made of: its graph, and of each node the layer and what runs it. `about`: what a front end keeps with it."""

    graph: Graph
    layers: tuple[Layer, ...]
    natives: list[Prepared | IntegerLayer | None]
    accuracy: Accuracy
    about: Mapping[str, Any] = {}


def save(path: Path, parts: Parts, machine: str, threads: int) -> None:
    """ProblemError names a layer that a file cannot hold."""
    graph = parts.graph
    arrays: dict[str, Array] = {}

    def kept(value: Any) -> Any:
        return _kept(value, arrays)

    document = {
        "format": _FORMAT,
        "pysim": _version(),
        "library": _library_digest(),
        "machine": machine,
        "threads": threads,
        "accuracy": parts.accuracy,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "narrow": sorted(graph.narrow),
        "half": sorted(graph.half),
        "tensors": {name: [tensor.shape, tensor.dtype.str] for name, tensor in graph.tensors.items()},
        "constants": {name: kept(array) for name, array in graph.constants.items()},
        "layers": [_layer_of(layer, native, kept) for layer, native in zip(parts.layers, parts.natives, strict=True)],
        "about": parts.about,
    }
    arrays["network"] = np.frombuffer(msgspec.json.encode(document), np.uint8)
    with written(path) as place, place.open("wb") as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            _write(archive, file.tell(), name, array)


def _write(archive: zipfile.ZipFile, at: int, name: str, array: Array) -> None:
    """As `np.savez` does, on a cache line: an extra field of the member's header fills the rest of the line before."""
    member = zipfile.ZipInfo(f"{name}.npy")
    filled = -(at + _LOCAL_HEADER + len(member.filename) + _ZIP64 + _EXTRA) % _LINE
    member.extra = _OWN.to_bytes(2, "little") + filled.to_bytes(2, "little") + bytes(filled)
    with archive.open(member, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, array, (1, 0), allow_pickle=False)


def _read(file: FileIO, size: int) -> Array:
    """A whole file in memory of this process: a mapping would be gone where another program cuts the file."""
    memory, done = aligned(size, np.uint8), 0
    while done < size:  # a system reads 2 GiB at most at once
        more = file.readinto(cast("Any", memory[done:]))
        if not more:
            raise ValueError("it was cut while it was read")
        done += more
    return memory


def load(path: Path, on: Machine, threads: int) -> Parts:
    """The parts of a file's network. ProblemError says why it cannot be used here."""
    try:
        with FileIO(path) as file, path.open("rb") as index, zipfile.ZipFile(index) as archive:
            arrays = _Arrays(archive, _read(file, path.stat().st_size))
            document = msgspec.json.decode(arrays["network"].tobytes())
            _check(path, document, on, threads)
            value, accuracy = partial(_value, arrays=arrays), msgspec.convert(document["accuracy"], Accuracy)
            constants = {name: value(array) for name, array in document["constants"].items()}
            layers = tuple(_layer(one, on, value) for one in document["layers"])
            tensors = {name: Tensor(tuple(shape), np.dtype(kind)) for name, (shape, kind) in document["tensors"].items()}
            narrow, half = (frozenset(map(str, document[which])) for which in ("narrow", "half"))
            natives = [_native(one, layer, threads, arrays, tensors) for one, layer in zip(document["layers"], layers, strict=True)]
    except OSError as error:
        raise ProblemError(f"{_name(path)} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        raise ProblemError(f"{_name(path)} is no whole network of pysim's: {error}; save it again from the model's file") from None
    nodes = tuple(layer.node for layer in layers)
    graph = Graph(nodes, tuple(document["inputs"]), tuple(document["outputs"]), tensors, constants, narrow=narrow, half=half)
    return Parts(graph, layers, natives, accuracy, document["about"])


def _check(path: Path, document: Mapping[str, Any], on: Machine, threads: int) -> None:
    """Whether prepared weights and plans are for this build, machine and number of threads."""
    here = {"format": _FORMAT, "pysim": _version(), "library": _library_digest(), "machine": on.name, "threads": threads}
    for what, value in here.items():
        if document[what] != value:
            was, told = (f"the {what} {printable(str(one))}" for one in (document[what], value))
            if what == "library":
                was, told = "another build of the native library", "this one"
            raise ProblemError(f"{_name(path)} was saved for {was}, not for {told}; save it again from the model's file")


def _version() -> str:
    return str(import_module("pysim").__version__)  # at the root, which imports this module


@once
def _library_digest() -> str:
    return hashlib.sha256(library_path().read_bytes()).hexdigest()


def _name(path: Path) -> str:
    return f'"{printable(str(path))}"'


# Layers


def _layer_of(layer: Layer, native: Prepared | IntegerLayer | None, kept: Callable[[Any], Any]) -> dict[str, Any]:
    node = layer.node
    if "reference" in node.attributes:
        why = "runs by its definition in Python, which a file cannot hold"
        raise ProblemError(f'{node.op.removeprefix("onnx.")} "{printable(node.name)}" {why}; keep the model\'s own file')
    document = {
        "op": node.op, "name": node.name, "inputs": node.inputs, "outputs": node.outputs, "absorbed": node.absorbed,
        "attributes": {name: _of_node(node, name, value, kept) for name, value in node.attributes.items()},
        "other_seconds": layer.other_seconds, "times": layer.times,
    }  # fmt: skip
    if layer.plan is not None:
        plan = layer.plan
        fields = {name: msgspec.to_builtins(getattr(plan, name)) for name in _OF_PLAN}
        fields |= {"schedule": msgspec.to_builtins(plan.schedule), "cost": msgspec.to_builtins(plan.cost)}
        document["plan"] = fields | {"problem": kept(plan.workload)}
    if isinstance(native, Prepared):
        document |= {"weights": kept(native.bytes), "bias": kept(native.bias)}
    return document


def _of_node(node: Node, name: str, value: Any, kept: Callable[[Any], Any]) -> Any:
    try:
        return kept(value)
    except TypeError as error:
        raise ProblemError(f'{node.op} "{printable(node.name)}" cannot be saved: its {printable(name)} is {error}') from None


def _layer(document: Mapping[str, Any], on: Machine, value: Callable[[Any], Any]) -> Layer:
    inputs, outputs, absorbed = (tuple(document[which]) for which in ("inputs", "outputs", "absorbed"))
    attributes = {name: value(one) for name, one in document["attributes"].items()}
    node = Node(document["op"], document["name"], inputs, outputs, attributes, absorbed)
    plan = _plan(document["plan"], on, value) if "plan" in document else None
    return Layer(node, plan, document["other_seconds"], document["times"])


def _plan(document: Mapping[str, Any], on: Machine, value: Callable[[Any], Any]) -> Plan:
    """A plan whose alternatives are found when they are first asked for."""
    problem = value(document["problem"])
    fields: dict[str, Any] = {name: document[name] for name in _OF_PLAN} | {
        "assumed": tuple(document["assumed"]),
        "contract": msgspec.convert(document["contract"], Contract | None),
    }
    schedule, cost = msgspec.convert(document["schedule"], Schedule), msgspec.convert(document["cost"], Cost)

    def again() -> Plan:
        terms: Any = {name: document[name] for name in ("accuracy", "threads")}
        return planned(Request(problem, on, document["layout"], document["state"], prepared=True, **terms))

    others: dict[str, Any] = {"considered": Later(lambda: again().considered), "rejected": Later(lambda: again().rejected)}
    return Plan(workload=problem, on=on, model="full", schedule=schedule, cost=cost, **fields, **others)


def _native(
    document: Mapping[str, Any], layer: Layer, threads: int, arrays: _Arrays, tensors: Mapping[str, Tensor]
) -> Prepared | IntegerLayer | None:
    """What runs a layer; an integer one prepares its weights, which are small, again."""
    if layer.node.op in INTEGER_LAYERS and layer.plan is not None:
        return IntegerLayer(layer.node, tensors[layer.node.inputs[0]], layer.plan, threads)
    if "weights" not in document or layer.plan is None:
        return None
    value = partial(_value, arrays=arrays)
    activation, (weights,) = layer.node.attributes.get("activation"), document["weights"].values()
    return prepared_type(layer.plan, Prepared).of(
        layer.plan, None, value(document["bias"]), activation, threads, prepared=arrays.view(weights)
    )


# Values


def _kept(value: Any, arrays: dict[str, Array]) -> Any:
    """A value for the document; arrays go beside it. TypeError for what no document holds."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject:
            raise TypeError("an array of objects")
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "number": name}
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin-1")}
    if isinstance(value, slice):
        return {"slice": [_kept(one, arrays) for one in (value.start, value.stop, value.step)]}
    if isinstance(value, Conv | Gemm):
        if parse(value.text) != value:
            raise TypeError(f"the problem {value.text}, which is more than its text says")
        return {"problem": value.text}
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    if isinstance(value, Quantity | Sums):
        return {type(value).__name__: [_kept(one, arrays) for one in value]}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_kept(one, arrays) for one in value]}
    raise TypeError(f"a {type(value).__name__}")


def _value(kept: Any, arrays: Mapping[str, Array]) -> Any:
    if not isinstance(kept, dict):
        return kept
    ((kind, one),) = kept.items()
    make: dict[str, Callable[[Any], Any]] = {
        "float": float,
        "array": arrays.__getitem__,
        "number": lambda name: arrays[name][()],
        "bytes": lambda text: text.encode("latin-1"),
        "slice": lambda ends: slice(*ends),
        "problem": parse,
        "dtype": np.dtype,
        "Quantity": lambda fields: Quantity(*(_value(one, arrays) for one in fields)),
        "Sums": lambda fields: Sums(*(_value(one, arrays) for one in fields)),
        "tuple": lambda items: tuple(_value(item, arrays) for item in items),
        "list": lambda items: [_value(item, arrays) for item in items],
    }
    return make[kind](one)
