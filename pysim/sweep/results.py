# SPDX-License-Identifier: Apache-2.0
"""The results of a sweep, one line of JSON each, in a file that grows while the sweep runs; and who computes them.

A line is written when its task is done. A sweep that was stopped goes on with what its file lacks: lines of another version or with an
error are computed again, an incomplete last line is removed. Tasks run in this process, or on Dask's workers: processes that it starts
here, or those of a scheduler, which may be on many machines. They get as many tasks at once as take GROUP_SECONDS, since each message
costs the processes of this computer 3 ms. A worker that dies costs the task that it worked on: what else it was given is given out again.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from pysim import __version__
from pysim.errors import MissingError, ProblemError
from pysim.sweep import task as tasks
from pysim.sweep.spec import Task

_BEGINNING = b'{"task":'
_AHEAD = 2  # groups of tasks that each worker has been given
GROUP_SECONDS, _MOST = 0.15, 64  # of a group of tasks, and how many they are at most


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the file."""

    task: Task
    result: dict[str, Any]
    pysim: str = __version__

    @property
    def failed(self) -> bool:
        return "error" in self.result


def read(path: Path) -> list[Result]:
    """What a file has, but an incomplete last line, which a sweep may be writing. The file stays as it is. ProblemError for one that is no
    sweep's."""
    whole, rest = _lines(path)
    try:
        found = [msgspec.json.decode(line, type=Result) for line in whole.splitlines()]
    except msgspec.MsgspecError as error:
        raise ProblemError(f"{path} has lines that are no results of a sweep ({error}); give another file") from None
    if not (rest.startswith(_BEGINNING) or _BEGINNING.startswith(rest)):
        raise ProblemError(f"{path} ends in a line that is no result of a sweep; give another file")
    return found


def _lines(path: Path) -> tuple[bytes, bytes]:
    """The complete lines of a file, and what follows them."""
    content = path.read_bytes() if path.exists() else b""
    end = content.rfind(b"\n") + 1
    return content[:end], content[end:]


def missing(wanted: Sequence[Task], found: Sequence[Result]) -> list[Task]:
    done = {one.task.key for one in found if one.pysim == __version__ and not one.failed}
    return [one for one in wanted if one.key not in done]


def latest(wanted: Sequence[Task], found: Sequence[Result]) -> list[Result]:
    """The last result of each task that has one, in the order of the tasks."""
    by_key = {one.task.key: one for one in found}
    return [by_key[one.key] for one in wanted if one.key in by_key]


def computed(wanted: Sequence[Task], path: Path, workers: int | None = None, scheduler: str | None = None) -> Iterator[Result]:
    """Computes tasks; each result is in the file before it is yielded. The file is one that `read` accepts."""
    with path.open("ab") as file:
        file.truncate(len(_lines(path)[0]))  # of a line that a killed sweep did not finish
        for result in _results(wanted, workers, scheduler):
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            yield result


def _results(wanted: Sequence[Task], workers: int | None, scheduler: str | None) -> Iterator[Result]:
    if not wanted or (workers is None and scheduler is None):
        yield from (Result(task=one, result=tasks.run(one)) for one in wanted)
        return
    with _client(workers, scheduler) as client:
        yield from _given_out(wanted, client, _AHEAD * max(1, len(client.scheduler_info(n_workers=-1)["workers"])))


def _given_out(wanted: Sequence[Task], client: Any, ahead: int) -> Iterator[Result]:
    """The results of the client's workers, `ahead` groups of tasks at a time. What failed is given out again, each task alone."""
    rest, failed, given, size, alone = iter(wanted), list[Task](), dict[Any, list[Task]](), 1, None
    done = import_module("distributed").as_completed(loop=client.loop)

    def give(group: list[Task]) -> Any:
        given[future := client.submit(tasks.run_all, group, pure=False)] = group
        done.add(future)
        return future

    def give_all() -> Any:
        while len(given) < ahead and (group := [*islice(rest, size)]):
            give(group)
        return give([failed.pop()]) if failed and not given else None

    give_all()
    for future in done:
        error, group = future.exception(), given.pop(future)
        if error and future is not alone:
            failed += group
        if not error:
            seconds, results = future.result()
            size = max(1, min(_MOST, int(GROUP_SECONDS * len(group) / max(seconds, 1e-9))))
        died = future is alone and error
        alone = give_all()
        if died:
            yield Result(task=group[0], result={"error": _sentence(died)})
        elif not error:
            yield from (Result(task=one, result=result) for one, result in zip(group, results, strict=True))
        future.release()


def _sentence(error: BaseException) -> str:
    return "its worker died" if type(error).__name__ == "KilledWorker" else f"{type(error).__name__}: {error}"


@contextmanager
def _client(workers: int | None, scheduler: str | None) -> Iterator[Any]:
    try:
        dask, distributed = import_module("dask"), import_module("distributed")
    except ImportError:
        raise MissingError("workers need Dask: pip install distributed") from None
    if scheduler is not None:
        try:
            client = distributed.Client(scheduler, timeout="10s", set_as_default=False)
        except (OSError, ValueError) as error:
            raise ProblemError(f"no Dask scheduler answers at {scheduler}: {error}") from None
        with client:
            yield client
        return
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
