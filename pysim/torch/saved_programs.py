# SPDX-License-Identifier: Apache-2.0
"""One kind of call of a model on a GPU, kept in a file: its captured graph with the plans of its layers, as JSON behind its digest.

    sha256 of what follows
    {"format", "pysim", "torch", "gpu", "settings", ..., the call (`saved_calls`), the graph (`program_text`)}

The graph reads the model's parameters and buffers where they are, so the file holds no weights, and weights may be others than they were
and may change: what the kernels read of them is computed on the GPU in the first call, in milliseconds. A call can be kept if it is one
graph that PyTorch's compiler has not compiled.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from pysim.errors import ProblemError, PysimError, printable
from pysim.file_io import read_bytes, written
from pysim.torch.graphs import Graph, Program, graphed
from pysim.torch.parameters import TrainedNorms
from pysim.torch.program_text import UntoldError, kept, program_of, told, value_of
from pysim.torch.saved_calls import Given, RecordedCall, SavedCall, refused, tensors_of

_FORMAT, _DIGITS, _MOST = 2, 64, 1 << 28
_BEGINNING = b'\n{"format":'


def save_program(model: Any, optimized: Any, graph: Any, options: Mapping[str, Any], path: Path, given: Given) -> None:
    """Writes a call of an optimized model that was called so before."""
    program: Program = graph.program
    call = RecordedCall(model, optimized, graph, given)
    names, leaves = {id(one): name for name, one in tensors_of(model).items()}, {id(one): at for at, one in enumerate(call.leaves)}
    made = call.made if isinstance(call.made, tuple | list) else (call.made,)
    try:
        reads = [_read(one, names, leaves) for one in call.inputs]
        makes = [_made(one, made, leaves, names) for one in call.result_tensors]
        document = _here() | {"options": {"accuracy": options["accuracy"], "cuda_graph": options["cuda_graph"]}}
        document |= call.told(makes) | {"reads": reads, "static": [*program.parameters], "program": told(program.rewritten)}
    except UntoldError as error:
        raise refused(str(error)) from None
    text = json.dumps(document, separators=(",", ":")).encode()
    with written(path) as place:
        place.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def _here() -> dict[str, Any]:
    """What a file is for. The settings are those that a capture takes for the same in all calls."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    version = str(import_module("pysim").__version__)  # at the root, which imports this module
    return {"format": _FORMAT, "pysim": version, "torch": torch.__version__, "gpu": gpu, "settings": kept(_settings())}


def _settings() -> tuple[Any, ...]:
    cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    default = torch.get_default_dtype(), torch.get_default_device()
    return cast, torch.is_autocast_enabled("cpu"), *default, torch.are_deterministic_algorithms_enabled()


def _read(one: Any, names: Mapping[int, str], leaves: Mapping[int, int]) -> Any:
    """An input of the graph: the name of a tensor of the model, or the place of an argument."""
    found = names.get(id(one), leaves.get(id(one)))
    if found is None or not isinstance(one, torch.Tensor):
        raise UntoldError("it reads a value that is neither an argument nor a parameter or buffer of the model")
    return found


def _made(one: Any, made: Sequence[Any], leaves: Mapping[int, int], names: Mapping[int, str]) -> Any:
    """A result of the call: what the graph made, an argument, or a tensor of the model."""
    for at, value in enumerate(made):
        if value is one:
            return {"made": at}
    if id(one) in leaves or id(one) in names:
        return {"read": _read(one, names, leaves)}
    raise UntoldError("a result is computed outside of the graph")


def is_program(path: Path) -> bool:
    """Whether a file begins as one that `save_program` wrote."""
    try:
        with path.open("rb") as file:
            return file.read(_DIGITS + len(_BEGINNING))[_DIGITS:] == _BEGINNING
    except (OSError, ValueError):
        return False


class SavedProgram(SavedCall):
    """The calls of a file of `save_program`."""

    def __init__(self, path: Path) -> None:
        name, content = f'"{printable(str(path))}"', read_bytes(path, _MOST)
        digest, text = content[:_DIGITS], content[_DIGITS + 1 :]
        if hashlib.sha256(text).hexdigest().encode() != digest:
            raise ProblemError(f"{name} is damaged: its digest is not that of its contents; save it again from the model")
        document = json.loads(text)
        for what, value in _here().items():
            if document[what] != value:
                was, told_now = (printable(str(one)) for one in (document[what], value))
                raise ProblemError(f"{name} was saved for the {what} {was}, not for {told_now}; save it again from the model")
        try:
            self._rewritten = program_of(document["program"])
        except (UntoldError, KeyError, TypeError, ValueError, PysimError) as error:
            raise ProblemError(f"{name} is no call of a model: {error}; save it again from the model") from None
        super().__init__(path, document)
        self.options, self._static = document["options"], document["static"]
        self.layers = self._rewritten.layers
        self._known = value_of(document["settings"], {})
        self._graph: Graph | None = None

    def of(self, model: torch.nn.Module) -> "SavedProgram":
        super().of(model)
        made, by_name = self._rewritten, dict[str, Any]()
        for path, module in model.named_modules(remove_duplicate=False):
            for of in (module._parameters, module._buffers):
                by_name |= {f"{path}.{name}".lstrip("."): (of, name) for name in of}
        self._sources = [by_name[one] if isinstance(one, str) else one for one in self._about["reads"]]
        self._made_of = [by_name.get(one["read"], one["read"]) if "read" in one else None for one in self._about["makes"]]
        graph = Graph(None, graphed(made, self._static, self.options["cuda_graph"]), made.layers, made.parameters)
        graph.trained_norms = TrainedNorms(of for of, _ in (self._sources[at] for at in made.means))
        self._graph = graph
        return self

    def _forms_of(self, tensors: Sequence[Any]) -> list[Any]:
        return [*super()._forms_of(tensors), *map(attrgetter("device"), tensors)]

    def _settings_are_same(self) -> bool:
        return bool(self._graph is not None and _settings() == self._known)

    def _changed(self, tensors: Sequence[Any]) -> bool:
        return False  # the graph looks at them

    def _forget(self) -> None:
        self._graph, self.layers = None, []

    def _computed(self, leaves: Sequence[Any]) -> list[Any] | None:
        if self._graph is None:
            return None
        made = self._graph(*[_from(source, leaves) for source in self._sources])
        found = list[Any]()
        for one, source in zip(self._about["makes"], self._made_of, strict=True):
            found.append(made[one["made"]] if "made" in one else _from(source, leaves) if "read" in one else one["value"])
        return found


def _from(source: Any, leaves: Sequence[Any]) -> Any:
    if isinstance(source, int):
        return leaves[source]
    of, name = source
    return of[name]
