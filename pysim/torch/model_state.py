# SPDX-License-Identifier: Apache-2.0
"""What a model is beside the numbers in its tensors: classes and their code, attributes, hooks, the global variables that the code names.

`told` describes it, the same in every process: the path of each thing and what it is. `unchanged` tells in a later call, by comparing
shallow copies of all dictionaries, lists and sets that the model reaches, whether it still is as it was.

Worked entries: `layer1.0.conv1.stride` is `(2, 2)`, `layer1.0.conv1.weight` is `Parameter torch.float32 (64, 64, 1, 1) (64, 1, 1, 1)`,
`class torchvision.models.resnet.Bottleneck` is a digest of its functions' code.
"""

import hashlib
import logging
import platform
import re
import sys
from enum import Enum
from functools import partial
from operator import itemgetter
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from pysim.errors import OperandError

_SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, range, slice,
    torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format,
)  # fmt: skip
_NO_NUMBERS = (ModuleType, logging.Logger, re.Pattern)  # what results do not depend on
_TREE = ("_parameters", "_buffers", "_modules")  # whose entries are a module's attributes
_DIGITS = 16


class ModelState:
    def __init__(self, model: torch.nn.Module) -> None:
        self.told: dict[str, str] = {"python": platform.python_version(), "torch": str(torch.__version__)}
        self._paths: dict[int, str] = {}
        self._alive: list[Any] = []  # so that no two things have one address
        self._watched: list[Any] = []
        self._globals: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._modules = [*model.modules()]
        self._kinds = [*map(type, self._modules)]
        self._visit(model, "")
        self._copies = [one.copy() for one in self._watched]
        self._reads = [(itemgetter(*sorted(names)), of) for of, names in self._globals.values() if names]
        self._read = [get(of) for get, of in self._reads]

    def unchanged(self) -> bool:
        """Things are compared by identity, and only others by their values."""
        try:
            same = self._watched == self._copies and self._kinds == [*map(type, self._modules)]
            return bool(same and self._read == [get(of) for get, of in self._reads])
        except (RuntimeError, ValueError, KeyError):  # another tensor or array in the place of one; a variable that was deleted
            return False

    def _visit(self, value: Any, path: str) -> None:
        kind = type(value)
        if kind in _SIMPLE or isinstance(value, Enum | np.generic | np.dtype):
            text = repr(value)
        elif isinstance(value, torch.Tensor):
            text = f"{kind.__name__} {value.dtype} {tuple(value.shape)} {value.stride() if value.layout is torch.strided else value.layout}"
        elif isinstance(value, FunctionType | MethodType | BuiltinFunctionType | type):
            text = f"{value.__module__}.{value.__qualname__}"
            if isinstance(value, FunctionType):
                text += f" {self._code_of(value)}"
        elif id(value) in self._paths:
            text = f"the same as {self._paths[id(value)]}"
        else:
            self._paths[id(value)] = path
            self._alive.append(value)
            text = f"{kind.__module__}.{kind.__qualname__}" + self._inside(value, path)
        self.told[path] = text

    def _inside(self, value: Any, path: str) -> str:
        """Visits the parts of a value; what is to be told of it itself."""
        if isinstance(value, set | frozenset):
            self._watched += [value] if isinstance(value, set) else []
            return f" {sorted(map(repr, value)) if all(type(one) in _SIMPLE for one in value) else len(value)}"
        if isinstance(value, list | tuple | dict):
            self._watched += [] if isinstance(value, tuple) else [value]
            for key, one in value.items() if isinstance(value, dict) else enumerate(value):
                self._visit(one, f"{path}[{key!r}]" if type(key) in _SIMPLE else f"{path}[{type(key).__name__}]")
            return f" of {len(value)}"
        if isinstance(value, partial):
            self._visit((value.func, value.args, value.keywords), f"{path}()")
            return ""
        if isinstance(value, _NO_NUMBERS):
            return ""
        self._classes(type(value))
        attributes = getattr(value, "__dict__", None)
        if attributes is None or _holds_more(type(value)):
            raise OperandError(f"{path or 'the model'} is a {type(value).__qualname__}, whose changes could not be seen")
        self._watched.append(attributes)
        is_module = isinstance(value, torch.nn.Module)
        for name, one in attributes.items():
            within = f"{path}.{name}".lstrip(".")
            if is_module and name in _TREE:
                self._watched.append(one)
                for key, part in one.items():
                    self._visit(part, f"{path}.{key}".lstrip("."))
            elif one or type(one) in _SIMPLE:
                self._visit(one, within)
            elif isinstance(one, dict | list | set):
                self._watched.append(one)  # empty
        return ""

    def _classes(self, kind: type) -> None:
        """The code of a class and those that it is made of; PyTorch's own is told by its version."""
        for one in kind.__mro__:
            name, top = f"class {one.__module__}.{one.__qualname__}", one.__module__.partition(".")[0]
            if top in ("builtins", "torch") or top in sys.stdlib_module_names - {"__main__"} or name in self.told:
                continue
            if version := getattr(sys.modules.get(top), "__version__", ""):
                self.told[f"package {top}"] = str(version)
            functions = [function for value in vars(one).values() for function in _functions(value)]
            self.told[name] = ""  # it is being told
            numbers = [f"{key} {value!r}" for key, value in vars(one).items() if type(value) in _SIMPLE and not key.startswith("__")]
            self.told[name] = _digest(*(self._code_of(function) for function in functions), *numbers)
            self._watched.append(vars(one))

    def _code_of(self, function: FunctionType) -> str:
        """A digest of a function's code, of what it encloses, and of the functions and numbers that it names: of its own module, and of
        other modules of the user's. What these name beside, in modules of the user's, is visited, too."""
        if id(function) in self._paths:
            return self._paths[id(function)]
        self._paths[id(function)] = function.__qualname__  # where it names itself
        self._alive.append(function)
        named = _named(function)
        for of, name in named:
            self._globals.setdefault(id(of), (of, set()))[1].add(name)
        parts = [_code_text(function.__code__), *(repr(one) for one in function.__defaults__ or () if type(one) in _SIMPLE)]
        enclosed = [("", cell.cell_contents) for cell in function.__closure__ or () if cell != CellType()]
        for name, one in (*enclosed, *((name, of[name]) for of, name in named)):
            if type(one) in _SIMPLE:
                parts.append(repr(one))
            parts += [
                self._code_of(one) for one in _functions(one) if one.__module__ == function.__module__ or is_users_module(one.__module__)
            ]
            if isinstance(one, type) and is_users_module(one.__module__):
                self._classes(one)
            elif (
                name and is_users_module(function.__module__) and (type(one) in (list, dict, set) or is_users_module(type(one).__module__))
            ):
                self._visit(one, f"{function.__module__}:{name}")
        self._paths[id(function)] = found = _digest(*parts)
        return found


def is_users_module(module: str | None) -> bool:
    """Whether a module is neither the standard library's nor of a package that a version tells."""
    top = str(module).partition(".")[0]
    return top not in (*sys.builtin_module_names, *sys.stdlib_module_names - {"__main__"}) and not hasattr(
        sys.modules.get(top), "__version__"
    )


def _named(function: FunctionType) -> list[tuple[dict[str, Any], str]]:
    """The variables that a function's code names: of its module, and of the user's modules that are such variables."""
    names, given = {name for code in _codes(function.__code__) for name in code.co_names}, function.__globals__
    found = [(given, name) for name in sorted(names & given.keys())]
    modules = [one for of, name in found if isinstance(one := of[name], ModuleType) and is_users_module(one.__name__)]
    return found + [(vars(module), name) for module in modules for name in sorted(names & vars(module).keys())]


def _holds_more(kind: type) -> bool:
    """Whether objects of a class have state beside their attributes: in slots, or as the standard library's."""
    if kind is SimpleNamespace:
        return False
    slots = any(vars(one).get("__slots__") for one in kind.__mro__)
    return slots or kind.__module__.partition(".")[0] in sys.stdlib_module_names - {"__main__"}


def _functions(value: Any) -> list[FunctionType]:
    """The Python functions that a class's attribute consists of."""
    if isinstance(value, property):
        return [function for one in (value.fget, value.fset) for function in _functions(one)]
    value = getattr(value, "__func__", value)
    return [value] if isinstance(value, FunctionType) else []


def _codes(code: CodeType) -> list[CodeType]:
    """A code object and those within it."""
    return [code, *(inner for one in code.co_consts if isinstance(one, CodeType) for inner in _codes(one))]


def _code_text(code: CodeType) -> str:
    constants = [sorted(map(repr, one)) if isinstance(one, frozenset) else repr(one) for one in code.co_consts if type(one) is not CodeType]
    own = repr((code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars))
    return own + "".join(_code_text(one) for one in code.co_consts if isinstance(one, CodeType))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGITS]
