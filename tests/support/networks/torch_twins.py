# SPDX-License-Identifier: Apache-2.0
"""A model that pysim runs beside its twin, a copy that PyTorch runs: whatever is done to both, their results and states stay equal."""

import copy

import torch

import pysim.torch

# Largest difference from eager's result, over the largest finite number in it
TOLERANCES = {
    torch.float64: 1e-10,
    torch.complex128: 1e-10,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
WAYS = {"optimize": pysim.torch.optimize, "compile": lambda model: torch.compile(model, backend=pysim.torch.backend)}


def difference(found, wanted):
    """How a result differs from eager's: "" if by no more than the rounding of its type."""
    if type(found) is not type(wanted):
        return f"a {type(found).__name__} for a {type(wanted).__name__}"
    if isinstance(wanted, torch.Tensor):
        return _of_tensors(found, wanted)
    if isinstance(wanted, dict):
        if list(found) != list(wanted):
            return f"keys {list(found)} for {list(wanted)}"
        return _first(list(wanted), found.values(), wanted.values())
    if isinstance(wanted, list | tuple):
        if len(found) != len(wanted):
            return f"{len(found)} results for {len(wanted)}"
        return _first(range(len(wanted)), found, wanted)
    if isinstance(wanted, float):
        return difference(torch.tensor(found), torch.tensor(wanted))
    return "" if found == wanted else f"{found!r} for {wanted!r}"


def _first(places, found, wanted):
    """The first difference, with its place."""
    faults = ((place, difference(one, other)) for place, one, other in zip(places, found, wanted, strict=True))
    return next((f"[{place!r}] {fault}" for place, fault in faults if fault), "")


def _of_tensors(found, wanted):
    for what in ("dtype", "layout", "device", "is_nested", "requires_grad", "is_quantized", "is_sparse"):
        if getattr(found, what) != getattr(wanted, what):
            return f"{what} {getattr(found, what)} for {getattr(wanted, what)}"
    if found.is_inference() != wanted.is_inference():
        return "an inference tensor for none" if found.is_inference() else "no inference tensor for one"
    if wanted.is_nested:
        return difference(list(found.unbind()), list(wanted.unbind()))
    if found.shape != wanted.shape:
        return f"shape {tuple(found.shape)} for {tuple(wanted.shape)}"
    with torch.no_grad():
        found, wanted = (_plain(one.detach()) for one in (found, wanted))
        return "" if wanted.is_meta else _of_values(found, wanted)


def _plain(tensor):
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return tensor.dequantize() if tensor.is_quantized else tensor


def _of_values(found, wanted):
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return "" if torch.equal(found, wanted) else "other integers"
    finite = torch.isfinite(wanted)
    if not torch.equal(finite, torch.isfinite(found)):
        return f"{int((~torch.isfinite(found)).sum())} numbers that are not finite for {int((~finite).sum())}"
    if not torch.equal(found.isnan(), wanted.isnan()):
        return "NaN in other places"
    wide = torch.complex128 if wanted.is_complex() else torch.float64
    kept, right = found[finite].to(wide), wanted[finite].to(wide)
    if not torch.equal(found[~finite & ~wanted.isnan()], wanted[~finite & ~wanted.isnan()]):
        return "other infinities"
    error, size = (float(one.abs().max()) if one.numel() else 0.0 for one in (kept - right, right))
    return "" if error <= TOLERANCES[wanted.dtype] * size else f"off by {error:.3g} of at most {size:.3g} ({wanted.dtype})"


def copied(value):
    """A copy of arguments, with the strides of tensors that have some."""
    if isinstance(value, dict):
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    if not isinstance(value, torch.Tensor) or (type(value) is torch.Tensor and value.layout is torch.strided and _has_storage(value)):
        return copy.deepcopy(value)
    return type(value)(value.detach().clone(), value.requires_grad) if isinstance(value, torch.nn.Parameter) else value.clone()


def _has_storage(tensor):
    return not (tensor.is_nested or tensor.is_quantized or tensor.is_mkldnn)


def raised(call):
    """(what it returns, None), or (None, what it raises)."""
    try:
        return call(), None
    except Exception as error:  # whatever a model raises
        return None, error


def same_error(error, right):
    """Whether this is the exception that eager raises; torch.compile raises its own for errors that it sees while it traces."""
    return isinstance(error, type(right)) or (isinstance(error, torch._dynamo.exc.TorchDynamoException) and right is not None)


class Twins:
    """`ours`: the model as pysim runs it. `model`: the user's own. `twin`: its copy, which nothing but PyTorch has seen."""

    def __init__(self, model, way, change=lambda model: None):
        self.model, self.twin = model, copy.deepcopy(model)
        self.do(change)  # of what cannot be copied
        self.ours = WAYS[way](model)

    def do(self, change):
        """The same change to the model and to its twin, with the same random numbers."""
        for one in (self.model, self.twin):
            torch.manual_seed(1)
            change(one)

    def check(self, *args, times=2, **kwargs):
        """Results, exceptions and states are equal; both sides draw the same random numbers."""
        for at in range(times):
            sides = []
            for one in (self.ours, self.twin):
                torch.manual_seed(at)
                given = copied((args, kwargs))
                sides.append(raised(lambda one=one, given=given: one(*given[0], **given[1])))
            (found, error), (wanted, right) = sides
            if right is None and error is not None:
                raise error
            assert (error is right is None) or same_error(error, right), f"{error!r} for {right!r}"
            fault = difference(found, wanted)
            assert not fault, f"call {at}: {fault}"
        self.check_states()

    def check_states(self):
        assert not (fault := difference(dict(self.model.state_dict()), dict(self.twin.state_dict()))), fault
        for (name, one), other in zip(self.model.named_modules(), self.twin.modules(), strict=True):
            found, wanted = (vars(each).keys() - {"_is_torch_compile"} for each in (one, other))  # which torch.compile itself puts there
            assert found == wanted, f"{name}: {found ^ wanted}"
