# SPDX-License-Identifier: Apache-2.0
"""A probe on several CPUs at once."""

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor


def all_at_once(probe: Callable[[], float], cpus: int, allowed: Collection[int] | None = None) -> list[float]:
    """The probe's result in each of `cpus` threads started together. Each is pinned to a CPU of its own, as in native/threads,
    where enough are `allowed` (default: those of the calling thread). Unpinned, two may share a CPU for longer than a probe takes."""
    ready = threading.Barrier(cpus)

    def one(cpu: int | None) -> float:
        _pin(cpu)
        ready.wait()
        return probe()

    with ThreadPoolExecutor(cpus) as pool:
        return list(pool.map(one, _cpus_of(cpus, allowed)))


def one_by_one(probe: Callable[[], float], cpus: int, allowed: Collection[int] | None = None) -> list[float]:
    """The probe's result on each CPU of such a team, in the calling thread, while the other CPUs are idle."""
    before, found = usable(), list[float]()
    try:
        for cpu in _cpus_of(cpus, allowed):
            _pin(cpu)
            found.append(probe())
    finally:
        if before:
            os.sched_setaffinity(0, before)
    return found


def _cpus_of(threads: int, allowed: Collection[int] | None) -> list[int | None]:
    """The CPU of each thread of a team; None if there are too few."""
    places = sorted(usable() if allowed is None else allowed)
    return [places[number * len(places) // threads] for number in range(threads)] if len(places) >= threads else [None] * threads


def _pin(cpu: int | None) -> None:
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})


def usable() -> Collection[int]:
    """The CPUs that the calling thread may run on; empty where unknown."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
