# SPDX-License-Identifier: Apache-2.0
"""A random module under a random sequence of actions, by pysim and, as a copy, by eager PyTorch: results, exceptions and states are equal.

    python tests/fuzz/torch_walk.py --sequences 20000 --seed 0 [--compile] [--jobs 4] [--seconds 500]

prints what each differing sequence's seed is; `--sequences 1 --seed THAT --verbose` repeats it and shows the actions."""

import argparse
import copy
import logging
import random
import sys
import time
import traceback
import unittest.mock
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))
import checkout  # noqa: F401
import torch_actions
import torch_modules
import walk_processes
from torch_actions import ACTIONS, Side
from torch_models import FREES_CAPTURES
from torch_twins import TOLERANCES, difference, raised, same_error

import pysim.torch
from pysim.torch.layers import network_layer

STEPS = 12  # of the longest sequence
NEAR = 1e-2  # a result of eager's, perhaps under autocast, and its like in float64, of its largest number
ROUNDING = "a difference that rounding explains"
PYTORCHS = "pytorch"  # a fault that torch.compile has with the backend "eager", too
_OF_CALLS = (torch_actions.call, torch_actions.train, torch_actions.functional_call)  # whose results rounding may explain
MOVES = 8  # a choice between nearly equal numbers changes with some movements of the weights alone
AMPLIFIED = 50  # a difference may be so many times that of inputs and weights that differ by 2^-22 of themselves, or the type's step


def compiled(model):
    if "pysim" not in torch._dynamo.list_backends():  # it is not installed
        torch._dynamo.register_backend(pysim.torch.backend, name="pysim")
    return torch.compile(model, backend="pysim")


def compiled_by_eager(model):
    return torch.compile(model, backend="eager")


def walk(seed, make, whole=True, replaces=True, habitual=True, log=lambda line: None):
    """What differs in the sequence of this seed: ("difference" | "exception" | "", why). `replaces`: half of the users keep only what is
    made of their model. `habitual`: most calls are alike, so that one capture is used after several changes."""
    torch._dynamo.reset()
    rng = random.Random(seed)
    model, right = (torch_modules.network(seed) for _ in range(2))  # a copy would share the classes of parametrized modules
    habit = seed if habitual else None
    twin = Side(right, lambda one: one, habit=habit)
    ours = Side(model, make, whole, replaces=rng.random() < 0.5 and whole and replaces, habit=habit)
    twin.renew()
    _, error = raised(ours.renew)
    if error is not None:
        return "exception", f"optimize: {_line(error)}"
    if fault := states(ours, twin):
        return "difference", f"optimize: {fault}"
    for at in range(rng.randint(4, STEPS)):
        action = torch_actions.call if at == 0 else rng.choices([*ACTIONS], [*ACTIONS.values()])[0]
        number = rng.randrange(1 << 30)
        log(f"{at}: {action.__name__}")
        kind, why = one_step(action, number, ours, twin, log)
        if kind:
            return ("", "") if kind == "ends" else (kind, f"step {at}, {action.__name__}: {why}")
    return "", ""


def one_step(action, number, ours, twin, log):
    """The same action of both sides; what differs. "ends": both raised, in different states, or cannot go on."""
    before = _copied(twin) if action in _OF_CALLS else None
    (found, error), (wanted, right) = (raised(lambda side=side: act(action, number, side)) for side in (ours, twin))
    if error is not None:
        log(f"   raises {_line(error)}" + (f" at {traceback.extract_tb(error.__traceback__)[-1]}" if right is None else ""))
    if _of_weak_references(right) or (_of_weak_references(error) and not FREES_CAPTURES):
        return "ends", ""
    if right is None and error is not None:
        return ("ends", "") if _of_pruned(error) and not ours.whole else ("exception", _line(error))
    if right is not None and (error is None or not (same_error(error, right) or _of_sparse(error, right))):
        return "difference", f"{_line(error)} for {_line(right)}"
    if right is None and (fault := difference(found, wanted)):
        if not before or not _explains(action, number, before, found, wanted):
            return "difference", fault
        log(f"   {ROUNDING}")
    if fault := states(ours, twin):
        if right is None and before and sensitive_states(action, number, before, ours, twin):
            return "ends", ""
        return ("ends", "") if right is not None else ("difference", fault)
    if fault := next(filter(None, (difference(one, kept) for one, kept in map(_plain, ours.kept[-3:]))), ""):
        written_by_eager = any(difference(one, kept) for one, kept in map(_plain, twin.kept[-3:]))
        return ("", "") if written_by_eager else ("difference", f"an earlier result: {fault}")
    return "", ""


def act(action, number, side):
    torch.manual_seed(number)
    random.seed(number)
    return action(side, random.Random(number))


def _plain(kept):
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.detach().clone(), kept[0]), kept[1]


def _line(error):
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def _copied(side):
    """The twin before an action; None where it cannot be copied, as results that gradients flow through."""
    model, _ = raised(lambda: copy.deepcopy(side.model))
    return model and Side(model, lambda one: one, call=model, habit=side.habit)


def _of_weak_references(error):
    """Whether a tensor cannot be swapped since something refers to it: an export of eager's model or, in PyTorch before 2.14, a capture,
    also of torch.compile with the backend "eager"."""
    return isinstance(error, RuntimeError) and "has weakref associated" in str(error)


def _of_pruned(error):
    """Whether a pruned weight is a result that gradients flow through, so that it cannot be copied: torch.compile, with any backend, leaves
    it as it was in a call that raises while it is traced, and eager has computed it anew."""
    return isinstance(error, RuntimeError) and "support the deepcopy protocol" in str(error)


def _of_sparse(error, right):
    """Whether eager refuses to permute a sparse tensor: what shapes alone tell of it in a trace is another exception."""
    return isinstance(error, IndexError) and isinstance(right, RuntimeError) and "permute(sparse" in str(right)


def _explains(action, number, before, found, wanted):
    return gelu_of_infinity(action, number, copy.deepcopy(before), found) or any(
        explains(action, number, before, found, wanted) for explains in (sensitive, more_exact)
    )


def gelu_of_infinity(action, number, before, found):
    """Whether this is what eager makes with a GELU by erf that has its limit at infinity, as pysim's: PyTorch's vector code has NaN."""

    def limited(x, approximate="none"):
        y = gelu(x, approximate=approximate)
        return torch.where(x == torch.inf, x, y) if approximate == "none" else y

    gelu = torch.nn.functional.gelu
    with unittest.mock.patch.object(torch.nn.functional, "gelu", limited):
        other, error = raised(lambda: act(action, number, before))
    return error is None and not difference(found, other)


def sensitive(action, number, before, found, wanted):
    """Whether rounding can explain a difference: what eager makes of weights that are off by it, from the same state."""
    for draw in range(MOVES):
        torch.manual_seed(draw)
        moved = moved_by_rounding(before)
        results, error = raised(lambda moved=moved: act(action, number, moved))
        if error is None and _all(_explained, found, wanted, results):
            return True
    return False


def more_exact(action, number, before, found, wanted):
    """Whether results are nearer than eager's to those in float64, of which eager's are near enough that both drew the same numbers; where
    those are 0 and eager's is all rounding, whether ours is of its size."""
    model = copy.deepcopy(before.model).double()

    def call(*args, **named):
        args, named = torch.utils._pytree.tree_map_only(torch.Tensor, lambda one: one.float().double(), (args, named))
        return model(*args, **named)

    exact, error = raised(lambda: act(action, number, Side(model, lambda one: one, call=call, habit=before.habit)))
    return error is None and _all(_nearer, found, wanted, exact)


def _nearer(found, wanted, exact):
    if not difference(found, wanted):
        return True
    if not isinstance(exact, torch.Tensor) or type(found) is not torch.Tensor or found.dtype != wanted.dtype or found.shape != exact.shape:
        return False
    error, own = (float((one.detach().double() - exact).abs().max()) for one in (found, wanted))
    size = float(exact.abs().max())
    return error <= own <= NEAR * size or (size <= NEAR * own and own <= TOLERANCES[wanted.dtype] and error <= AMPLIFIED * own)


def sensitive_states(action, number, before, ours, twin):
    """The same of the tensors that an action in training leaves: a mean that should be 0 is all rounding."""
    moved = moved_by_rounding(before)
    _, error = raised(lambda: act(action, number, moved))
    return error is None and _all(_explained, *({**side.model.state_dict()} for side in (ours, twin, moved)))


def moved_by_rounding(before):
    moved = copy.deepcopy(before)
    for tensor in (*moved.model.parameters(), *moved.model.buffers()):
        if tensor.is_floating_point():
            with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
                step = max(2.0**-22, torch.finfo(tensor.dtype).eps)
                tensor.mul_(1 + step * torch.randn(tensor.shape, dtype=torch.float64).to(tensor.dtype))
    return moved


def _all(explains, *results):
    leaves = [torch.utils._pytree.tree_leaves(one) for one in results]
    return len({*map(len, leaves)}) == 1 and all(map(explains, *leaves))


def _explained(found, wanted, moved):
    if not isinstance(wanted, torch.Tensor):
        return not difference(found, wanted)
    if type(found) is not torch.Tensor or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    if not wanted.is_floating_point() or not difference(found, wanted):
        return True
    error, scale = ((one.detach().double() - wanted.detach().double()).abs() for one in (found, moved))
    return bool(error.isfinite().all() and scale.isfinite().all() and error.max() <= AMPLIFIED * scale.max())


# States


def states(ours, twin):
    """How the two models' tensors and attributes differ, by more than rounding: results are written into buffers, and steps along gradients
    into parameters. What differs by rounding is then made equal, so that nothing adds up."""
    if list(ours.model.state_dict()) != list(twin.model.state_dict()):
        return f"keys {set(ours.model.state_dict()) ^ set(twin.model.state_dict())}"
    mine, right = ([*side.model.named_modules(remove_duplicate=False)] for side in (ours, twin))
    if [name for name, _ in mine] != [name for name, _ in right]:
        return "other submodules"
    for (name, one), (_, other) in zip(mine, right, strict=True):
        if type(one).__qualname__ != type(other).__qualname__:  # parametrized modules have a class each
            return f"{name}: {type(one)} for {type(other)}"
        own = {key: getattr(one, key, None) for key in _own(other)} if ours.replaces and not name else _own(one)  # it may have more
        for kind in ("_parameters", "_buffers", ""):
            if fault := _attributes(vars(one)[kind] if kind else own, vars(other)[kind] if kind else _own(other)):
                return f"{name}{fault}"
    return ""


COMPILERS = {"_dynamo_static_input_type"}  # what torch.compile and torch.export write to parameters, with any backend
_PYTORCHS = {"_parameters", "_buffers", "_modules", "_is_torch_compile", "_flat_weights", "_flat_weight_refs", "forward"}


def _own(module):
    """The attributes that are neither tensors of the model nor modules nor hooks."""
    return {name: one for name, one in vars(module).items() if name not in _PYTORCHS and "_hooks" not in name}


def _attributes(mine, right):
    if mine.keys() != right.keys():
        return f": attributes {mine.keys() ^ right.keys()}"
    for name, other in right.items():
        one = mine[name]
        if isinstance(other, torch.Tensor) and isinstance(one, torch.Tensor):
            if type(one) is not type(other) or vars(one).keys() - COMPILERS != vars(other).keys() - COMPILERS:
                return f".{name}: a {type(one).__name__} with {[*vars(one)]}"
            if one.dtype == other.dtype and one.shape == other.shape and _same_bits(one, other):
                continue
            if fault := difference(one.detach(), other.detach()):
                return f".{name}: {fault}"
            with torch.inference_mode() if other.is_inference() else torch.no_grad():
                other.copy_(one)
        elif isinstance(other, list | dict | tuple | float | int | str | type(None)) and (fault := difference(one, other)):
            return f".{name}: {fault}"
    return ""


def _same_bits(one, other):
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.element_size()) if one.is_floating_point() else None
    one, other = one.detach(), other.detach()
    return torch.equal(one.view(integers), other.view(integers)) if integers else torch.equal(one, other)


# The script


def every_layer_is_ours():
    """Whatever PyTorch is expected to need."""
    network_layer.pytorch_seconds = lambda *_: float("inf")


def start(make):
    """What the first compilation of a process imports; nothing that takes time alone."""
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # it empties the caches to time guards, a tenth of a sequence
    with torch.no_grad():
        make(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval())(torch.ones(1, 3, 8, 8))
    torch._dynamo.reset()


def options():
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--sequences", type=int, default=1000)
    given.add_argument("--seed", type=int, default=0, help="of the first sequence; the others follow")
    given.add_argument("--compile", action="store_true", help='torch.compile(model, backend="pysim") in place of optimize')
    given.add_argument("--seconds", type=float, default=float("inf"), help="after which no further sequence begins")
    given.add_argument("--jobs", type=int, default=1, help="processes")
    given.add_argument("--peer", choices=("pysim", "identity", "eager"), default="pysim", help="what the fuzzer itself is tested with")
    given.add_argument("--rare", action="store_true", help="calls that have less in common, so that most are captured anew")
    given.add_argument("--verbose", action="store_true")
    given.add_argument("--record", type=Path, help="a file that gets a line for each sequence; those that it has are not walked again")
    return given.parse_args()


def main():
    given = options()
    make = compiled if given.compile else lambda model: pysim.torch.optimize(model)
    if given.peer != "pysim":
        make = {"identity": lambda model: model, "eager": compiled_by_eager}[given.peer]
    every_layer_is_ours()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)  # what Dynamo says of graph breaks
    start(make)
    counts, begin = {"": 0, "difference": 0, "exception": 0, PYTORCHS: 0}, time.perf_counter()
    before = {int(line.split()[0]) for line in given.record.read_text().splitlines()} if given.record and given.record.exists() else set()

    def walked(seed):
        if time.perf_counter() - begin > given.seconds:
            return None
        torch.set_num_threads(1)  # in a forked process, before another thread does it
        lines = []
        log = print if given.verbose else lines.append
        how = {"whole": not given.compile and given.peer != "eager", "habitual": not given.rare}
        kind, why = walk(seed, make, log=log, **how)
        if kind and given.compile and given.peer == "pysim" and walk(seed, compiled_by_eager, **how)[0] == kind:
            kind = PYTORCHS
        return kind, why or ROUNDING * any(ROUNDING in line for line in lines)

    seeds = (seed for seed in range(given.seed, given.seed + given.sequences) if seed not in before)
    for seed, result in walk_processes.each(walked, seeds, given.jobs):
        if result is None:
            continue
        kind, why = ("exception", result) if isinstance(result, str) else result
        counts[kind] += 1
        if given.record:
            with given.record.open("a") as record:
                record.write(f"{seed} {kind or 'equal'} {why}\n")
        if kind:
            flags = "--compile " * given.compile + "--rare " * given.rare
            print(f"{kind}: {why}\n    python {Path(__file__).name} --sequences 1 {flags}--verbose --seed {seed}", flush=True)
    total, seconds = sum(counts.values()), time.perf_counter() - begin
    print(f"{total} sequences, {counts['difference']} differences, {counts['exception']} exceptions that eager does not raise")
    print(f'{counts[PYTORCHS]} more that torch.compile has with backend="eager", too')
    print(f"{total / seconds:.2f} sequences/s", file=sys.stderr)
    sys.exit(1 if counts["difference"] or counts["exception"] else 0)


if __name__ == "__main__":
    main()
