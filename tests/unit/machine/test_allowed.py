# SPDX-License-Identifier: Apache-2.0
"""How many CPUs a process may use: masks, quotas of cgroups and their ancestors, and ranks, told by files and variables made for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from native_library import native

from pysim.machine.allowed import allowed, allowed_by
from pysim.measure.clock import pinned


def computer(root: Path, cpus: int, per_core: int = 1) -> frozenset[int]:
    """Hardware threads of core i: i, i + cores, ..., as servers number them."""
    cores = cpus // per_core
    write(root, {"sys/devices/system/cpu/online": f"0-{cpus - 1}\n"})
    for cpu in range(cpus):
        siblings = ",".join(str(cpu % cores + cores * i) for i in range(per_core))
        write(root, {f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": siblings + "\n"})
    return frozenset(range(cpus))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def ranks(rank: int, of: int) -> dict[str, str]:
    return {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(of)}


def test_without_files_the_mask_is_all_that_counts(tmp_path: Path) -> None:
    assert allowed_by(tmp_path, {}, frozenset({2, 5}))[:3] == (2, 2, ())


def test_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    mask = computer(tmp_path, 8, 2)
    assert allowed_by(tmp_path, {}, mask) == (4, 8, (), "8 CPUs on 4 cores")
    assert allowed_by(tmp_path, {}, frozenset({1, 2, 5}))[:2] == (2, 3)


QUOTAS = {
    "v2, a container's root": ("0::/\n", {"cpu.max": "300000 100000"}, 3),
    "v2, no quota": ("0::/\n", {"cpu.max": "max 100000"}, 8),
    "v2, rounded up": ("0::/\n", {"cpu.max": "150000 100000"}, 2),
    "v2, less than a CPU": ("0::/\n", {"cpu.max": "20000 100000"}, 1),
    "v2, more than there are": ("0::/\n", {"cpu.max": "6400000 100000"}, 8),
    "v2, the least of all ancestors": (
        "0::/pod/it/in\n",
        {"pod/it/in/cpu.max": "max 100000", "pod/it/cpu.max": "400000 100000", "pod/cpu.max": "250000 50000"},
        4,
    ),
    "v2, an ancestor has less": ("0::/pod/it\n", {"pod/it/cpu.max": "700000 100000", "pod/cpu.max": "200000 100000"}, 2),
    "v2, beside v1": ("4:memory:/\n0::/it\n", {"unified/it/cpu.max": "200000 100000"}, 2),
    "v2, a path of the host's": ("0::/../../kubepods/pod1/it\n", {"cpu.max": "200000 100000"}, 2),
    "v1": ("3:cpu,cpuacct:/it\n", {"cpu,cpuacct/it/cpu.cfs_quota_us": "500000", "cpu,cpuacct/it/cpu.cfs_period_us": "100000"}, 5),
    "v1, none": ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    "v1, a path that only the host has": (
        "3:cpuacct,cpu:/docker/1\n",
        {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
        2,
    ),
    "v1, another's": ("3:cpu:/it\n", {"cpu/other/cpu.cfs_quota_us": "100000", "cpu/other/cpu.cfs_period_us": "100000"}, 8),
    "no numbers": ("0::/\n", {"cpu.max": "much 0"}, 8),
    "a broken line": ("nonsense\n", {}, 8),
}
NONE = {"v2, no quota", "v1, none", "v1, another's", "no numbers", "a broken line"}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_limits_threads(name: str, tmp_path: Path) -> None:
    groups, files, threads = QUOTAS[name]
    mask = computer(tmp_path, 8)
    write(tmp_path, {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{file}": text + "\n" for file, text in files.items()})
    found = allowed_by(tmp_path, {}, mask)
    assert found[:3] == (threads, threads, ())
    assert ("quota" in found.reason) == (name not in NONE)


def test_ranks_divide_the_cores_and_the_quota(tmp_path: Path) -> None:
    mask = computer(tmp_path, 32, 2)
    parts = [allowed_by(tmp_path, ranks(rank, 4), mask) for rank in range(4)]
    assert [one.threads for one in parts] == [4] * 4 and parts[1].cpus == (4, 5, 6, 7, 20, 21, 22, 23)
    assert sorted(cpu for one in parts for cpu in one.cpus) == sorted(mask)
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1000000 100000"})
    found = allowed_by(tmp_path, ranks(1, 4), mask)
    assert found[:2] == (3, 3) and found.reason == "32 CPUs on 16 cores, 4 cores for rank 1 of 4, a quota of 10 CPUs for 4 ranks"


def test_uneven_parts_and_more_ranks_than_cores_leave_each_rank_a_core(tmp_path: Path) -> None:
    mask = computer(tmp_path, 5)
    assert [allowed_by(tmp_path, ranks(rank, 3), mask).cpus for rank in range(3)] == [(0,), (1, 2), (3, 4)]
    assert [allowed_by(tmp_path, ranks(rank, 7), mask).threads for rank in range(7)] == [1] * 7
    assert all(allowed_by(tmp_path, ranks(rank, 7), mask).cpus for rank in range(7))


def test_a_mask_that_the_launcher_made_is_the_ranks_own(tmp_path: Path) -> None:
    computer(tmp_path, 8)
    found = allowed_by(tmp_path, ranks(1, 2), frozenset({4, 5, 6, 7}))
    assert found[:3] == (4, 4, ()) and "alone" in found.reason


@pytest.mark.parametrize("file", ["cpuset.cpus.effective", "cpuset/cpuset.effective_cpus", "cpuset/cpuset.cpus"])
def test_ranks_in_a_container_divide_the_containers_cpus(file: str, tmp_path: Path) -> None:
    computer(tmp_path, 8)
    write(tmp_path, {f"sys/fs/cgroup/{file}": "2-3,6-7\n"})
    assert allowed_by(tmp_path, ranks(1, 2), frozenset({2, 3, 6, 7})).cpus == (6, 7)


LAUNCHERS = {
    "torchrun before what started it": ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "SLURM_LOCALID": "0"}, (6, 7)),
    "Open MPI": ({"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, (4, 5, 6, 7)),
    "MPICH": ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "8"}, (0,)),
    "MVAPICH2": ({"MV2_COMM_WORLD_LOCAL_RANK": "0", "MV2_COMM_WORLD_LOCAL_SIZE": "4"}, (0, 1)),
    "Slurm": ({"SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),2", "SLURM_NODEID": "2"}, (4, 5, 6, 7)),
    "Slurm, a script that is no step": ({"SLURM_LOCALID": "0", "SLURM_TASKS_PER_NODE": "4", "SLURM_NODEID": "0"}, ()),
    "Slurm, an unknown node": ({"SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "1"}, ()),
    "one rank": ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, ()),
    "a rank without a number": ({"LOCAL_RANK": "0"}, ()),
    "a rank beyond": ({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}, ()),
    "no numbers": ({"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "two"}, ()),
}


@pytest.mark.parametrize("name", LAUNCHERS)
def test_launchers_tell_ranks(name: str, tmp_path: Path) -> None:
    environ, cpus = LAUNCHERS[name]
    assert allowed_by(tmp_path, environ, computer(tmp_path, 8)).cpus == cpus


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no process to a processor")
def test_what_a_process_may_use_is_not_what_a_measurement_pinned() -> None:
    allowed.cache_clear()
    with pinned():
        inside = allowed()
    allowed.cache_clear()
    assert inside == allowed()


AS_A_RANK = """
import os, time
before, environment = os.sched_getaffinity(0), dict(os.environ)
import numpy as np, pysim
from pysim.machine.allowed import allowed
known, own = set(os.listdir("/proc/self/task")), set(allowed().cpus)
x, w = np.ones((1, 64, 28, 28), np.float32), np.ones((64, 64, 3, 3), np.float32)
pysim.conv2d(x, w, threads=len(own))
placed = [os.sched_getaffinity(int(tid)) for tid in set(os.listdir("/proc/self/task")) - known]
assert placed and all(one <= own for one in placed if one != before), (placed, own)
assert any(one != before for one in placed)
assert os.sched_getaffinity(0) == before and dict(os.environ) == environment
"""


@native
@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 6, reason="needs CPUs for three ranks of two threads"
)
def test_workers_of_a_rank_are_placed_on_its_own_cpus() -> None:
    if not allowed_by(Path("/"), ranks(1, 2), frozenset(os.sched_getaffinity(0))).cpus:
        pytest.skip("the mask is a part of the computer")
    environ = os.environ | ranks(1, 2)
    done = subprocess.run([sys.executable, "-c", AS_A_RANK], capture_output=True, text=True, timeout=250, env=environ)
    assert done.returncode == 0, done.stderr
