# SPDX-License-Identifier: Apache-2.0
"""How many CPUs of this computer the process may use, and which: the one answer for `threads="all"`, PyTorch models, the pool and doctor.

    mask      the process's affinity mask: its cores, whose hardware threads count once
    quota     CPU time per period of its cgroup (v2 cpu.max, v1 cpu.cfs_quota_us), the least of all its ancestors, rounded up as by the
              runtimes of Java and Go: a thread more is paused for a part of each period, a thread less leaves time unused
    ranks     processes that a launcher starts together on a computer divide the quota, and the cores if each may run on all of them. A mask
              that is smaller than the container is taken for the rank's own: its launcher has bound it

Worked number: rank 1 of 4 on 16 cores under a quota of 10 CPUs has cores 4 to 7, and min(4, 10/4 rounded up) = 3 threads.
Nothing is changed: neither the mask nor the environment, which OpenMP's libraries read as well.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pysim.caches import once

# The rank among the processes of a computer, and their number, by torchrun, Open MPI, MPICH and Intel MPI, MVAPICH2
RANKS = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)
SLURM = ("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")  # the second is of all computers: "2(x3),1"


class Allowed(NamedTuple):
    """`threads`: one for each core, `most`: for each hardware thread of one. `cpus`: of this rank alone, or empty: all of the mask.
    `reason`: where all three come from."""

    threads: int
    most: int
    cpus: tuple[int, ...]
    reason: str


@once
def allowed() -> Allowed:
    """Of this process, when first asked; of a fork's child anew."""
    return allowed_by(Path("/"), os.environ, _mask())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=allowed.cache_clear)


def _mask() -> frozenset[int]:
    """Of the process, not of the calling thread, which may be pinned for a measurement."""
    return frozenset(os.sched_getaffinity(os.getpid()) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def allowed_by(root: Path, environ: Mapping[str, str], mask: frozenset[int]) -> Allowed:
    """`root`: of the files of /proc and /sys."""
    cores, quota, (rank, ranks) = _cores(root, mask), _quota(root), _rank(environ)
    said, own = [f"{_count(len(mask), 'CPU')} on {_count(len(cores), 'core')}"], list[tuple[int, ...]]()
    if ranks > 1 and mask >= _of_container(root):
        own = cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks] or [cores[rank % len(cores)]]
        said.append(f"{_count(len(own), 'core')} for rank {rank} of {ranks}")
    elif ranks > 1:
        said.append(f"the mask is that of rank {rank} of {ranks} alone")
    within = math.ceil(quota / ranks) if quota else len(mask)
    if quota:
        said.append(f"a quota of {quota:g} CPUs" + (f" for {ranks} ranks" if ranks > 1 else ""))
    cpus = tuple(sorted(cpu for core in own for cpu in core))
    return Allowed(min(len(own or cores), within), min(len(cpus or mask), within), cpus, ", ".join(said))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _cores(root: Path, mask: frozenset[int]) -> list[tuple[int, ...]]:
    """The CPUs of a mask by cores, in the order of each core's first CPU."""
    cores: dict[int, list[int]] = {}
    for cpu in sorted(mask):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _cpus(_text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list"))
        cores.setdefault(min(siblings | {cpu}), []).append(cpu)
    return [tuple(cores[first]) for first in sorted(cores)]


def _of_container(root: Path) -> frozenset[int]:
    """The CPUs of the outermost cgroup that can be seen: of the container, or the whole computer."""
    cgroup, computer = root / "sys/fs/cgroup", root / "sys/devices/system/cpu/online"
    places = (cgroup / "cpuset.cpus.effective", cgroup / "cpuset/cpuset.effective_cpus", cgroup / "cpuset/cpuset.cpus", computer)
    return next(filter(None, map(_cpus, map(_text, places))), frozenset(range(os.cpu_count() or 1)))


def _cpus(text: str) -> frozenset[int]:
    """The CPUs of a list like "0-3,8"; none of anything else."""
    parts = [re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()) for part in text.split(",")]
    return frozenset(cpu for part in parts if part for cpu in range(int(part[1]), int(part[2] or part[1]) + 1))


def _quota(root: Path) -> float | None:
    """CPUs: the least quota of the process's cgroups and all their ancestors."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    cgroup = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            for place in _ancestors((cgroup, cgroup / "unified"), path):
                yield from _ratio(*_text(place / "cpu.max").split()[:2])
        elif "cpu" in controllers.split(","):
            for place in _ancestors((cgroup / controllers, cgroup / "cpu"), path):
                yield from _ratio(_text(place / "cpu.cfs_quota_us"), _text(place / "cpu.cfs_period_us"))


def _ancestors(mounts: Iterable[Path], path: str) -> Iterator[Path]:
    """The folders of a cgroup and of those around it. A container may see its own as the root, and still read the path that its host sees:
    such a folder is not there."""
    for mount in mounts:
        group = PurePosixPath("/") / path
        for one in (group, *group.parents):
            if ".." not in one.parts:
                yield mount / one.relative_to("/")


def _ratio(quota: str = "", period: str = "") -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):  # "max" and -1: none
        yield int(quota) / int(period)


def _rank(environ: Mapping[str, str]) -> tuple[int, int]:
    """(the rank among the processes that a launcher started on this computer, their number); (0, 1) of any other process."""
    local, tasks, node = (environ.get(name, "") for name in SLURM)
    texts = [(environ.get(rank, ""), environ.get(ranks, "")) for rank, ranks in RANKS]
    for rank, ranks in (*texts, (local, _of_node(tasks, node))):
        if rank.isdecimal() and ranks.isdecimal() and int(rank) < int(ranks):
            return int(rank), int(ranks)
    return 0, 1


def _of_node(tasks: str, node: str) -> str:
    """The number of tasks of a node in Slurm's list; empty if it is not told."""
    parts = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part) for part in tasks.split(",")]
    counts = [part[1] for part in parts if part for _ in range(int(part[2] or 1))]
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
