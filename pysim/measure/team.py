# SPDX-License-Identifier: Apache-2.0
"""A probe on several CPUs at once."""

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor


def all_at_once(probe: Callable[[], float], cpus: int, allowed: Collection[int] | None = None) -> list[float]:
    """The probe's result in each of `cpus` threads started together. Each is pinned to a CPU of its own, as in native/conv/thread_pool.c,
    where enough are `allowed` (default: those of the calling thread). Unpinned, two may share a CPU for longer than a probe takes."""
    ready = threading.Barrier(cpus)
    places = sorted(usable() if allowed is None else allowed)

    def one(number: int) -> float:
        if len(places) >= cpus:
            os.sched_setaffinity(0, {places[number * len(places) // cpus]})
        ready.wait()
        return probe()

    with ThreadPoolExecutor(cpus) as pool:
        return list(pool.map(one, range(cpus)))


def usable() -> Collection[int]:
    """The CPUs that the calling thread may run on; empty where unknown."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
