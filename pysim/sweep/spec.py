# SPDX-License-Identifier: Apache-2.0
"""What a sweep consists of, from a TOML file: every combination of what its lists name is one task.

problems = ["resnet50", "gemm:512x2048x1024"]
machines = ["zen4", "zen5"]
how = "predict"                  # or "simulate" (misses of each cache, exactly) or "measure" (here)
algorithms = ["sconv"]           # left out: the best of all
threads = [1, 2]
[set]                            # numbers of the machines, as `pysim plan --set`
"levels.L2.ways" = [8, 16]
"""

import itertools
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from pysim.errors import ProblemError, choose
from pysim.file_io import read_text
from pysim.machine.change import Value
from pysim.machine.load import names
from pysim.problem.text import Layer, ModelFile, distinct, resolve
from pysim.record.accuracy import Accuracy
from pysim.record.plan import Layout

_MOST_BYTES = 1 << 20
How = Literal["predict", "simulate", "measure"]
WORDS = {"how": How, "layouts": Layout, "accuracy": Accuracy}


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    problems: tuple[str, ...]
    machines: tuple[str, ...] = ("host",)
    how: How = "predict"
    algorithms: tuple[str, ...] = ()
    threads: tuple[int, ...] = (1,)
    layouts: tuple[Layout, ...] = ("nchw",)
    accuracy: tuple[Accuracy, ...] = ("standard",)
    set: dict[str, tuple[Value, ...]] = {}


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One row of a sweep; `count`: how often the problem occurs among the sweep's layers."""

    problem: str
    machine: str
    how: How = "predict"
    algorithm: str | None = None
    threads: int = 1
    layout: Layout = "nchw"
    accuracy: Accuracy = "standard"
    changes: dict[str, Value] = {}
    count: int = 1

    @property
    def key(self) -> bytes:
        """Equal for equal tasks."""
        return msgspec.json.encode(self, order="deterministic")

    @property
    def case(self) -> str:
        """What is varied beside the problem."""
        options = (self.algorithm, f"{self.threads} threads" * (self.threads > 1), self.layout * (self.layout != "nchw"))
        accuracy = self.accuracy * (self.accuracy != "standard")
        return ", ".join(filter(None, (self.machine, *(f"{k}={v}" for k, v in self.changes.items()), *options, accuracy)))


def read(path: Path) -> Spec:
    """The specification in a file; ProblemError says what is wrong and where."""
    try:
        return msgspec.convert(tomllib.loads(read_text(path, _MOST_BYTES)), Spec)
    except (ValueError, RecursionError) as error:  # msgspec's too
        if word := re.search(r"Invalid enum value '(.*)' - at `\$\.(\w+)", str(error)):
            raise ProblemError(f'{path}: {word[2]}: "{word[1]}" is not a choice; {choose(word[1], get_args(WORDS[word[2]]))}') from None
        unknown = re.search(r"unknown field `([^`]*)`$", str(error))
        hint = f"; {choose(unknown.group(1), Spec.__struct_fields__)}" if unknown else ""
        raise ProblemError(f"{path}: {error}{hint}") from None


def tasks_of(spec: Spec, read_model: Callable[[ModelFile], list[Layer]], where: str = "sweep") -> list[Task]:
    """Every combination, problems varying fastest. ProblemError for an empty list, and what `resolve` raises."""
    axes: dict[str, Any] = {
        "machines": spec.machines,
        "threads": spec.threads,
        "layouts": spec.layouts,
        "accuracy": spec.accuracy,
        **spec.set,
    }
    if empty := [name for name, values in {"problems": spec.problems, **axes}.items() if not values]:
        raise ProblemError(f"{where}: {empty[0]} is empty; leave it out or name at least one")
    machines = names() if spec.machines == ("all",) else spec.machines
    layers = distinct(resolve(spec.problems, read_model))
    changes = [dict(zip(spec.set, values, strict=True)) for values in itertools.product(*spec.set.values())]
    cases = itertools.product(machines, changes, spec.algorithms or (None,), spec.threads, spec.layouts, spec.accuracy)
    return [
        Task(
            problem=layer.workload.text, machine=machine, how=spec.how, algorithm=algorithm, threads=threads, layout=layout,
            accuracy=accuracy, changes=changed, count=layer.count,
        )
        for machine, changed, algorithm, threads, layout, accuracy in cases
        for layer in layers
    ]  # fmt: skip
