# SPDX-License-Identifier: Apache-2.0
"""A model's call through torch.compile, in which no part of the model's code runs twice.

Dynamo captures code frame by frame, each when it is about to run, and what follows a break of the graph is a frame of its own. Where a
capture fails, the frames before it have run: they have drawn random numbers, counted, printed. If it is the first frame's, nothing has run,
and the caller may call the model itself (NotCapturedError). A later frame goes on where it stands, by PyTorch, and raises there what
PyTorch raises. Dynamo's own means, suppress_errors, is a setting for all threads, skips code for good, and leaves out some failures.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from threading import RLock
from types import FunctionType
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import fx
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables.tensor import TensorVariable

from pysim.errors import OperandError
from pysim.torch.capture.strides import keeps_strides
from pysim.torch.model_state import is_users_module

_NAMES = count()
# else NumPy's random numbers are PyTorch's, and an assertion about values raises RuntimeError
_AS_EAGER = {"use_numpy_random_stream": True, "rewrite_assert_with_torch_assert": False}
Capture = Callable[[fx.GraphModule, Any], Any]


class NotCapturedError(Exception):
    """Nothing of the model's code has run. `by`: whose call it was."""

    def __init__(self, by: object, reason: str) -> None:
        super().__init__(reason)
        self.by = by


def captured_calls(
    model: Callable[..., Any],
    capture: Capture,
    by: object,
    failed: Callable[[str], None],
    guarded: Callable[[Any], None],
    whole: bool = False,
) -> Callable[..., Any]:
    """`model`, each of whose graphs becomes `capture(graph, inputs)`; `guarded` then gets its guards, and may refuse it, too. `failed` gets
    the reason why a later frame than the first goes on by PyTorch. `whole`: a call must be one graph."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    # torch.compile keeps graphs for each code object, and for each name which sizes and numbers differed between calls
    code = call.__code__.replace(co_name=f"call_{next(_NAMES)}")
    own = FunctionType(code, call.__globals__, closure=call.__closure__)
    # and those of functions that it calls after a graph break for each backend with its options, so an earlier one's are not found
    backend = torch._TorchCompileWrapper(_of_optimized, None, {"capture": lambda module, inputs: capture(module, inputs)}, None)
    context = torch._dynamo.optimize(backend, guard_export_fn=guarded, nopython=whole)
    if convert := getattr(context, "callback", None):  # TORCHDYNAMO_DISABLE leaves none

        def converted(frame: Any, *rest: Any) -> Any:
            # a later frame may be that of several modules of a class, which without guards for hooks are taken for one another
            hooks = {} if frame.f_code is code else {"skip_nnmodule_hook_guards": False}
            try:
                with torch._dynamo.config.patch(**_AS_EAGER, **hooks), _frozen(), _unsure() as found:
                    result = convert(frame, *rest)
                if found:
                    raise OperandError(found[0])
                return result
            except Exception as error:
                reason = _reason(error)  # and nothing else of it is kept: its frames hold weak references to the model's tensors
            if frame.f_code is code:
                raise NotCapturedError(by, reason)
            failed(reason)
            return ConvertFrameReturn(apply_to_code=False)

        converted._torchdynamo_orig_backend = convert  # type: ignore[attr-defined]  # by which Dynamo tells backends apart
        context.callback = converted
    return cast("Callable[..., Any]", context(own))


@contextmanager
def _frozen() -> Iterator[None]:
    """What is in memory before a capture is left out of the garbage collections in it: they would walk through all of PyTorch, a tenth of
    the first capture's time (ResNet-50 on a Zen 3: 0.4 of 4.7 s)."""
    if gc.get_freeze_count():  # frozen by the program
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _unsure() -> Iterator[list[str]]:
    """What the code that is captured here finds out of which no guard tells whether a later call, or this one by PyTorch, finds it, too:
    that a key, attribute or name is absent, where the user's code catches the exception, and strides of what it computes, which some of
    PyTorch's operators have only in a trace."""
    found = list[str]()

    def noting(translator: Any, raised: Any) -> None:
        _handle(translator, raised)  # raises, if the code does not catch it
        name = type(raised).__name__.removeprefix("Observed").replace("ErrorError", "Error")
        module = translator.f_globals.get("__name__")
        if module == "collections.abc":  # Mapping.get, for any class
            module = translator.symbolic_locals["self"].python_type().__module__
        if name in _ABSENCES and (is_users_module(module) or module == "collections"):  # whose ChainMap asks one mapping after the other
            found.append(f"it catches {_article(name)}: torch.compile takes what is absent to be so in all calls")

    def reading(tensor: Any, name: str, *given: Any, **named: Any) -> Any:
        if name == "stride" and not keeps_strides(tensor.proxy.node):
            found.append("it reads strides of what it computes, which may be others than torch.compile takes them for")
        return _size_or_stride(tensor, name, *given, **named)

    with (
        _CAPTURING,
        patch.object(InstructionTranslatorBase, "exception_handler", noting),
        patch.object(TensorVariable, "_method_size_stride", reading),
    ):
        yield found


_CAPTURING, _handle, _size_or_stride = RLock(), InstructionTranslatorBase.exception_handler, TensorVariable._method_size_stride
_ABSENCES = ("AttributeError", "ImportError", "KeyError", "LookupError", "ModuleNotFoundError", "NameError")


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIO" else f"a {name}"


def _reason(error: Exception) -> str:
    """Why a capture failed, in one line."""
    cause = getattr(error, "inner_exception", error.__cause__)
    return str(cause if isinstance(cause, OperandError) else error).strip().partition("\n")[0]


def _of_optimized(module: fx.GraphModule, inputs: Any, options: dict[str, Capture]) -> Any:
    return options["capture"](module, inputs)


# PyTorch frees the weak references that captures leave, also those that fail, only for backends that are registered
with suppress(AssertionError):  # it is, where this module is imported again
    torch._dynamo.register_backend(_of_optimized, name="pysim.torch.optimize", tags=("experimental",))
