# SPDX-License-Identifier: Apache-2.0
"""Predicted beside measured beside others' libraries on this computer's GPU: each plan is checked, then timed with its rivals, then stored.

What is checked how: `cuda_bench`; who the rivals are: `cuda_rivals`.

Time. Contenders take turns, one sample each per round, a pair of events around each, operands in L2 as the run before left them; short
convolutions are led by untimed calls (`cuda_peers.leads`). A peer with several algorithms is its fastest by the median; all were in the
same run.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pysim.comparison.cpu import OURS, keep, ratio
from pysim.comparison.cuda_bench import Bench, ConvBench, ProductBench
from pysim.comparison.cuda_rivals import Field, field_of, release
from pysim.errors import MissingError, PlanError, PysimError
from pysim.machine.gpu import Gpu
from pysim.measure.clock import quartiles
from pysim.measure.store import Store
from pysim.peers import cuda as cuda_peers
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import Layer
from pysim.record.cost import Cost
from pysim.record.measurement import Comparison
from pysim.record.schedule import GpuConvSchedule, GpuSchedule
from pysim.runtime import cuda

if TYPE_CHECKING:
    from pysim.record.plan import Plan

Planned = tuple[Layer, "Plan | PlanError"]
Samples = dict[str, NDArray[np.float64]]

WARMUPS, FEWEST_ROUNDS, MOST_ROUNDS = 3, 30, 1000


def compare(
    planned: Iterable[Planned],
    gpu: Gpu,
    *,
    peers: bool | None = False,
    store: Store | None = None,
    budget_seconds: float = 30.0,
    min_seconds: float = 0.2,
    seed: int = 0,
) -> Iterator[Comparison]:
    """Check and time the plan of each layer: a product beside cuBLAS, with `peers` also beside nvidia-matmul-heuristics' estimate, a
    convolution beside the fastest right algorithm of cuDNN, with `peers` also beside PyTorch; each alone if `peers` is None.

    Yields each layer as soon as it is done; one that cannot be run gives a Comparison that is not correct, with the reason.
    MissingError (no library, driver or device) ends the iteration.
    """
    cuda.devices()
    for layer, plan in planned:
        try:
            if isinstance(plan, PlanError):
                raise plan
            done = _measure(layer, plan, gpu, peers, store, budget_seconds, min_seconds, seed)
        except MissingError:
            raise
        except (PysimError, MemoryError) as error:
            reason = str(error) or "out of memory"
            done = _comparison(layer, gpu, plan={}, correct=False, reason=reason)
        release()
        yield done


def _comparison(layer: Layer, gpu: Gpu, **fields: Any) -> Comparison:
    return Comparison(problem=layer.workload.text, label=layer.label, count=layer.count, machine=gpu.name, **fields)


def _bench(plan: "Plan", seed: int) -> Bench:
    """The operands of a plan for a GPU."""
    if isinstance(plan.workload, Gemm) and isinstance(plan.schedule, GpuSchedule):
        return ProductBench(plan.workload, seed)
    if isinstance(plan.workload, Conv) and isinstance(plan.schedule, GpuConvSchedule):
        return ConvBench(plan.workload, seed, plan.layout)
    raise PlanError(f"the plan of {plan.problem} is for {plan.machine}; here plans of GPUs are measured")


def _measure(
    layer: Layer, plan: "Plan", gpu: Gpu, peers: bool | None, store: Store | None, budget_seconds: float, min_seconds: float, seed: int
) -> Comparison:
    bench = _bench(plan, seed)
    launches = {exact: bench.launch(plan.schedule, exact) for exact in (True, False)}
    wrong, error = bench.check(lambda exact: launches[exact].run(), plan.kernel)
    fields: dict[str, Any] = {"plan": plan.to_dict(), "predicted_seconds": plan.cost.seconds if isinstance(plan.cost, Cost) else None}
    fields["max_error"] = error if math.isfinite(error) else None
    if wrong:
        return _comparison(layer, gpu, correct=False, reason=f"failed: {wrong}", **fields)
    field = field_of(bench, type(layer.workload), gpu.name, peers)
    samples = interleave(launches[False].run, field, min_seconds, budget_seconds, bench.lead)
    if store is not None:
        keep(store, layer.workload, plan, gpu, "hot", 1, samples, field.versions)
    times = {name: quartiles(values) for name, values in samples.items()}
    fastest: dict[str, str] = {}
    for name in sorted(field.ready, key=lambda name: times[name][1]):
        fastest.setdefault(field.ready[name].peer, name)
    rivals = {peer: field.ready[name] for peer, name in fastest.items()}
    told = {peer: rival.workspace_bytes for peer, rival in rivals.items() if rival.workspace_bytes is not None}
    return _comparison(
        layer,
        gpu,
        correct=True,
        measured_seconds=times[OURS][1],
        samples=len(samples[OURS]),
        peers={peer: times[name][1] for peer, name in fastest.items()},
        ratios={peer: ratio(samples[name], samples[OURS]) for peer, name in fastest.items()},
        quartiles={OURS: times[OURS]} | {peer: times[name] for peer, name in fastest.items()},
        estimates=field.estimates,
        missing=field.missing,
        versions={name: field.versions[name] for name in field.estimates} | {peer: rival.version for peer, rival in rivals.items()},
        algorithms={peer: rival.algorithm for peer, rival in rivals.items() if rival.algorithm},
        workspaces={OURS: plan.workspace_bytes} | told,
        **fields,
    )


def interleave(ours: Callable[[], object], field: Field, min_seconds: float, budget_seconds: float, lead: bool) -> Samples:
    """Device seconds of our call and of each rival's, round by round, the order shifting by one each round. A rival that fails is dropped
    from the field, and its samples with it."""
    events = cuda_peers.Events()
    samples: dict[str, list[float]] = {}
    leads: dict[str, int] = {}

    def run(name: str, times: int) -> float | None:
        """Seconds of the last of so many runs; None of a rival that failed."""
        call = ours if name == OURS else field.ready[name].call
        try:
            for _ in range(times - 1):
                call()
            return events.seconds(call)
        except Exception as error:
            if name == OURS:
                raise
            field.drop(name, error)
            samples.pop(name, None)
            return None

    for name in [OURS, *field.ready]:
        if (warm := run(name, WARMUPS)) is not None:
            samples[name], leads[name] = [], cuda_peers.leads(warm) if lead else 0
    spent = 0.0
    for turn in range(MOST_ROUNDS):
        names = list(samples)
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            if (taken := run(name, leads[name] + 1)) is not None:
                samples[name].append(taken)
        spent += sum(values[-1] for values in samples.values())
        if (turn + 1 >= FEWEST_ROUNDS and spent >= min_seconds * len(samples)) or spent >= budget_seconds:
            break
    return {name: np.array(values) for name, values in samples.items()}
