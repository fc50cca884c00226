# SPDX-License-Identifier: Apache-2.0
"""What a captured call rests on that torch.compile has no guards for.

    hooks and classes    of the modules that the call read, whether they are a module's children or not; and that these are the same
                         modules, not others like them, which guards take for the same
    orders               of the keys of OrderedDicts and of the environment
    functions            of the classes of these modules and of other objects that it read, and their code; methods of tensors
    refused              what a capture takes for constant though each call changes it: generators of Python's random numbers other than
                         those of random.random and its like, deques, generators, functools.lru_cache (but of packages that have a
                         version); weak references to objects, which this would keep; `nn.TransformerEncoder` with a mask of padding,
                         where eager's nested tensors fill rows with zeros that a capture computes; and code of the user's that asks
                         whether it is compiled

Which objects a call read is what its guards tell: each has the object, or its class.
"""

import collections
import functools
import itertools
import operator
import os
import random
import re
import sys
from collections.abc import Callable, Iterable
from operator import attrgetter, itemgetter
from types import FunctionType, GeneratorType
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from pysim.errors import OperandError
from pysim.torch.model_state import is_users_module

_code = attrgetter("__code__")
_version_of = getattr(torch._C._dynamo.guards, "dict_version", lambda _: object())  # another one after each change of a dictionary
_tensor_method = vars(torch.Tensor).get
_OF_MODULE = re.compile(r"G\['__import_(\w+)'\]\.([\w.]+)")
_WITH_KEYS = collections.OrderedDict | type(os.environ)  # guards see neither that keys change places, nor all that come
_ASKS = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
_FROZEN: dict[Any, str] = {
    random.Random: "random.Random",
    collections.deque: "a deque",
    GeneratorType: "a generator",
    functools._lru_cache_wrapper: "a function with functools.lru_cache",
}


class Unguarded:
    """Of the calls of one model, since it was last captured anew."""

    def __init__(self) -> None:
        self._hooks: list[dict[int, Any]] = []
        self._ordered: list[tuple[dict[Any, Any], list[Any]]] = []  # with their keys
        self._modules: list[torch.nn.Module] = []
        self._children: tuple[list[dict[str, Any]], list[int]] = [], []  # and which modules they were, all of which are kept
        self._versions: list[Any] = []  # of these dictionaries when they were last looked into, which takes ten times as long
        self._are_plain = False
        self._kinds: list[type] = []
        self._functions: list[tuple[type, Callable[[type], Any], Any]] = []
        self._codes: tuple[list[FunctionType], list[Any]] = [], []
        self._others: dict[int, Any] = {}  # by identity: objects that no module of the model is
        self._methods: dict[str, Any] = {}

    def note_graph(self, graph: fx.Graph, modules: Iterable[torch.nn.Module]) -> None:
        """OperandError for what is refused."""
        called = [node for node in graph.nodes if node.op.startswith("call") and node.meta.get("nn_module_stack")]
        inside = [[*node.meta["nn_module_stack"].values()][-1][1] for node in called]
        if torch.nn.TransformerEncoder in inside and any(getattr(one, "use_nested_tensor", False) for one in modules):
            raise OperandError("nn.TransformerEncoder is called with a mask, which its own nested tensors make zeros of")
        names = {str(node.target) for node in graph.find_nodes(op="call_method")}
        for node in graph.nodes:
            if node.op == "call_function" and getattr(operator, name := getattr(node.target, "__name__", ""), None) is node.target:
                names |= {f"__{name.strip('_')}__", f"__r{name.strip('_')}__"}
        self._methods |= {name: _tensor_method(name) for name in names}

    def note_guards(self, guards: Iterable[Any], modules: Iterable[torch.nn.Module]) -> None:
        """Of a call that was just captured; `modules`: those of the model. OperandError for what is refused."""
        for guard in guards:
            of, kind = (reference() if reference is not None else None for reference in (guard.obj_weakref, guard.guarded_class_weakref))
            cached = functools._lru_cache_wrapper if guard.name.endswith(".__wrapped__") else None
            frozen = cached or (kind if of is None else type(of))
            if frozen is functools._lru_cache_wrapper and not is_users_module(getattr(_of_module(guard.name), "__module__", None)):
                frozen = None
            if frozen in _FROZEN:
                raise OperandError(f"it reads {_FROZEN[frozen]}, which torch.compile takes for constant")
            if isinstance(of, torch.nn.Module | FunctionType | type | _WITH_KEYS) or _is_foreign(type(of)):
                if guard.name.endswith("()"):
                    raise OperandError("it reads a weak reference, whose object must not be kept for it")
                self._others[id(of)] = of
        self._note({**{id(one): one for one in modules}, **self._others}.values())
        for one in self._codes[0]:
            if is_users_module(one.__module__) and not _ASKS.isdisjoint(one.__code__.co_names):
                raise OperandError(f"{one.__qualname__} asks whether it is compiled, and eager PyTorch's answer is no")

    def _note(self, read: Iterable[Any]) -> None:
        """How these are now."""
        modules = [one for one in read if isinstance(one, torch.nn.Module)]
        hooks = [hooks for one in modules for hooks in (one._forward_pre_hooks, one._forward_hooks)]
        ordered = [getattr(one, "_data", one) for one in read if isinstance(one, _WITH_KEYS)]
        self._hooks, self._ordered = [one for one in hooks if not one], [(one, [*one]) for one in (*hooks, *ordered) if one]
        self._modules, self._kinds = modules, [*map(type, modules)]
        children = [one._modules for one in modules if one._modules]
        self._children, self._versions, self._are_plain = (children, _ids_of(children)), [], {*map(type, children)} == {dict}
        others = [one if isinstance(one, type) else type(one) for one in read]
        kinds = {*self._kinds, *(one for one in others if _is_foreign(one))}
        self._functions = [(kind, pick := _functions_of(kind), pick(kind)) for kind in kinds]
        coded = [one for *_, functions in self._functions for one in functions] + [*read]
        coded = [*{id(one): one for one in coded if isinstance(one, FunctionType)}.values()]
        self._codes = coded, [*map(_code, coded)]

    def changed(self) -> bool:
        if any(self._hooks) or any([*keys] != before for keys, before in self._ordered) or self._children_changed():
            return True
        if [*map(type, self._modules)] != self._kinds or [*map(_code, self._codes[0])] != self._codes[1]:
            return True
        if self._methods != {name: _tensor_method(name) for name in self._methods}:
            return True
        try:
            return any(pick(of) != before for of, pick, before in self._functions)
        except AttributeError:  # a class has lost one
            return True

    def _children_changed(self) -> bool:
        children, before = self._children
        versions = [*map(_version_of, children)] if self._are_plain else [object()]  # an OrderedDict's keys change places without a new one
        if self._versions != versions:
            if _ids_of(children) != before:
                return True
            self._versions = versions
        return False


def _ids_of(values: Iterable[dict[str, Any]]) -> list[int]:
    return [*map(id, itertools.chain.from_iterable(map(dict.values, values)))]


def _of_module(name: str) -> Any:
    """What a guard names as an attribute of an imported module; None for other names."""
    found = _OF_MODULE.fullmatch(name)
    try:
        return found and attrgetter(found[2])(sys.modules[found[1].replace("_dot_", ".")])
    except (KeyError, AttributeError):
        return None


def _is_foreign(kind: type) -> bool:
    """Whether a class is neither PyTorch's nor the standard library's."""
    return kind.__module__.partition(".")[0] not in ("torch", *sys.stdlib_module_names) or kind.__module__ == "__main__"


def _functions_of(kind: type) -> Callable[[type], Any]:
    """What reads a class for its functions; those that all modules have are left out."""
    bodies = [vars(base) for base in kind.__mro__ if base not in (torch.nn.Module, object)]
    of = {name for body in bodies for name, one in body.items() if isinstance(one, FunctionType | property | classmethod | staticmethod)}
    own = sorted(name for name in of if name not in vars(torch.nn.Module) or name in ("forward", "__call__"))
    return attrgetter("__init__", "__new__", *own)  # two at least: of one name it would be no tuple


class _Functions:
    """The functions of torch.nn.functional when this module was imported. All are compared only after the module's dictionary changed."""

    def __init__(self) -> None:
        self._names = vars(functional)
        self._pick = itemgetter(*(name for name, one in self._names.items() if callable(one) and name[:1] != "_"))
        self._own, self._version = self._pick(self._names), _version_of(self._names)

    def are_pytorchs(self) -> bool:
        if self._version != (now := _version_of(self._names)):
            if self._pick(self._names) != self._own:
                return False
            self._version = now
        return True


FUNCTIONS = _Functions()
