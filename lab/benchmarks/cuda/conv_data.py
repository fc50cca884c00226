# SPDX-License-Identifier: Apache-2.0
"""The data files of lab/benchmarks/cuda/conv.py: the format of a line, reading and writing, and the acceptance figures computed from them.

JSON lines: one `Header` for each run that wrote to the file, then one `Line` per problem. Each is written and flushed at once, so that an
interruption loses one problem. A truncated last line is ignored when reading and removed when a run resumes.

Speeds are compared as ratios of median device seconds on the same line, r = theirs / ours, with geometric means over layers. A candidate
that was wrong or refused has no seconds and is left out; a peer's best is over all layouts. "No workspace" means less than
0.05 MiB: descriptors and index tables.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import msgspec

sys.path.append(str(Path(__file__).parents[2]))
import records

from pysim.errors import ProblemError, StoreError
from pysim.peers.cudnn import GEMM_CLASS
from pysim.problem.conv import Conv
from pysim.problem.text import Layer, distinct, parse, resolve

SETS = ("opencnn", "im2win", "resnet50")
NETWORKS = ("squeezenet", "googlenet")  # further networks, batch 32, without a bar
LISTS = Path(__file__).parents[3] / "problems" / "gpu"  # further networks: one file each, which states the batch size
DTYPES = ("f32", "tf32", "f16", "bf16")
USED = {"f32": "nchw", "tf32": "nchw", "f16": "nhwc", "bf16": "nhwc"}  # the layout in which a type is used and pysim is measured
OURS, CUDNN, TORCH = "pysim", "cudnn", "torch"
NO_WORKSPACE = 0.05 * 2**20


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    """A run: machine, versions, date. `note`: remarks on data that another program measured."""

    schema: int = 1
    device: str
    driver: str
    versions: dict[str, str]
    command: str
    date: str
    note: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Measurements of one candidate, or why there are none: `refused` (it did not run) or `wrong` (its result was).

    `who`: pysim, cudnn or torch. `algorithm`: cuDNN's, or the family of pysim's kernel; `form` distinguishes the family's rows. `seconds`:
    median of `samples` runs, with `quartiles`. `error`: largest |got - want| / (|x| * |f|) on random operands. `plan_of`: the accuracies
    for which it is the plan in this layout.
    """

    who: str
    algorithm: str = ""
    form: str = ""
    layout: str = "nchw"
    seconds: float | None = None
    quartiles: tuple[float, float] | None = None
    min_seconds: float | None = None
    samples: int = 0
    workspace_bytes: int | None = None
    error: float | None = None
    refused: str = ""
    wrong: str = ""
    predicted_seconds: float | None = None
    schedule: dict[str, Any] | None = None
    plan_of: tuple[str, ...] = ()


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="problem"):
    """One problem. `problem`: its text with the type of the multiplication (":tf32" too); `planned`: the candidate that pysim chose."""

    set: str
    label: str
    problem: str
    dtype: str
    planned: str = ""
    candidates: dict[str, Candidate]

    @property
    def key(self) -> tuple[str, str]:
        return self.set, self.problem

    @property
    def workload(self) -> Conv:
        """The problem; for tf32 the f32 problem, since its memory is f32."""
        found = parse(self.problem.removesuffix(":tf32"))
        assert isinstance(found, Conv)
        return found

    def of(self, who: str, keep: Callable[[Candidate], bool] = lambda _: True) -> dict[str, Candidate]:
        """The timed candidates of one library for which keep() is true, fastest first."""
        timed = {name: one for name, one in self.candidates.items() if one.who == who and one.seconds is not None and keep(one)}
        return dict(sorted(timed.items(), key=lambda item: item[1].seconds or 0.0))

    def best(self, who: str, keep: Callable[[Candidate], bool] = lambda _: True) -> Candidate | None:
        """The fastest of `of`."""
        return next(iter(self.of(who, keep).values()), None)

    def tflops(self, candidate: Candidate) -> float:
        """Operations of the direct method, 2 N K P Q C R S, per second / 1e12, also for transforms, which do fewer."""
        assert candidate.seconds
        return self.workload.flops / candidate.seconds / 1e12


Record = Header | Line


# Problems


def text_of(w: Conv, dtype: str) -> str:
    """The text of an f32 problem with another type."""
    return msgspec.structs.replace(w, dtype="f32").text + (f":{dtype}" if dtype != "f32" else "")


def listed() -> tuple[str, ...]:
    """The sets that have a file in LISTS."""
    return tuple(sorted(path.stem for path in LISTS.glob("*.txt")))


def problems(name: str) -> list[Layer]:
    """The distinct convolutions of a set, f32, at its batch sizes."""
    if name == "opencnn":
        return resolve(["opencnn"])
    if name in listed():
        return resolve([f"@{LISTS / name}.txt"])
    batch = ({"im2win": ("mec", 128), "resnet50": ("resnet50", 32)} | {other: (other, 32) for other in NETWORKS}).get(name)
    if batch is None:
        raise ProblemError(f"there is no set {name!r}; there are: {', '.join((*SETS, *NETWORKS, *listed()))}")
    source, size = batch
    return [layer._replace(workload=msgspec.structs.replace(layer.workload, batch=size)) for layer in distinct(resolve([source]))]


# Files


def write(path: Path, record: Record) -> None:
    """Appends a record and syncs it to disk."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(record) + b"\n")
        file.flush()


def read(path: Path) -> list[Record]:
    """The records of a file, without a truncated last line. StoreError if any other line is invalid."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    found: list[Record] = []
    number = 0

    def values() -> Iterator[Any]:
        nonlocal number
        for number, line in enumerate(lines, start=1):  # noqa: B007
            if line.strip():
                yield msgspec.json.decode(line)

    try:
        found.extend(msgspec.convert(one, Record) for one in records.expanded(values()))
    except (msgspec.DecodeError, TypeError) as error:
        if number != len(lines):  # else no newline at its end: the writer was interrupted
            raise StoreError(f"{path}, line {number} is not a record of a convolution benchmark: {error}") from None
    return found


def mend(path: Path) -> None:
    """Removes a truncated last line, so that records can be appended."""
    content = path.read_bytes()
    path.write_bytes(content[: content.rfind(b"\n") + 1])


def lines_of(paths: Iterable[Path]) -> list[Line]:
    """The problems of all files. Lines of the same problem are merged; a later file's candidate replaces one of the same name.

    Candidates from different files were not measured interleaved.
    """
    merged: dict[tuple[str, str], Line] = {}
    for path in paths:
        for record in read(path):
            if isinstance(record, Line):
                earlier = merged.get(record.key)
                candidates = (earlier.candidates if earlier else {}) | record.candidates
                planned = record.planned or (earlier.planned if earlier else "")
                merged[record.key] = msgspec.structs.replace(record, candidates=candidates, planned=planned)
    return list(merged.values())


# Figures


class Ratios(NamedTuple):
    """theirs / ours for each layer that has both."""

    labels: list[str]
    values: list[float]

    @property
    def mean(self) -> float:
        return geometric_mean(self.values)

    @property
    def worst(self) -> float:
        return min(self.values)


Side = Callable[[Line], Candidate | None]


def ratios(lines: Iterable[Line], ours: Side, theirs: Side) -> Ratios:
    found = Ratios([], [])
    for line in lines:
        mine, other = ours(line), theirs(line)
        if mine and other and mine.seconds and other.seconds:
            found.labels.append(line.label)
            found.values.append(other.seconds / mine.seconds)
    return found


def _free(one: Candidate) -> bool:
    return one.workspace_bytes is not None and one.workspace_bytes < NO_WORKSPACE


def planned(line: Line) -> Candidate | None:
    """The candidate that pysim's planner chose, if it was timed."""
    one = line.candidates.get(line.planned)
    return one if one and one.seconds else None


def regrets(lines: Iterable[Line]) -> Ratios:
    """Seconds of the planned candidate over those of pysim's fastest, for lines with at least two timed ones of pysim's."""
    found = Ratios([], [])
    for line in lines:
        mine, chosen = list(line.of(OURS).values()), planned(line)
        if len(mine) > 1 and chosen and chosen.seconds and mine[0].seconds:
            found.labels.append(line.label)
            found.values.append(chosen.seconds / mine[0].seconds)
    return found


class Figure(NamedTuple):
    """One figure of the acceptance table and its bar. `value` is None if the data do not suffice."""

    what: str
    value: float | None
    bar: str
    met: bool | None
    where: str = ""


def _at_least(what: str, value: float | None, bar: float, where: str = "") -> Figure:
    return Figure(what, value, f"at least {bar:g}", None if value is None else value >= bar, where)


def _at_most(what: str, value: float | None, bar: float, where: str = "") -> Figure:
    return Figure(what, value, f"at most {bar:g}", None if value is None else value <= bar, where)


def _share(what: str, votes: list[bool]) -> Figure:
    where = f"{sum(votes)} of {len(votes)} layers"
    return Figure(what, sum(votes) / len(votes) if votes else None, "all", all(votes) if votes else None, where)


def _versus(what: str, found: Ratios, mean: float | None, worst: float | None = None) -> Iterator[Figure]:
    """Geometric mean and worst layer of a comparison, each if it has a bar."""
    count = f"{len(found.values)} layers"
    lowest = found.labels[found.values.index(found.worst)] if found.values else ""
    if mean is not None:
        yield _at_least(f"{what}: geometric mean", found.mean if found.values else None, mean, count)
    if worst is not None:
        yield _at_least(f"{what}: worst layer", found.worst if found.values else None, worst, lowest)


def figures(lines: Iterable[Line]) -> list[Figure]:
    """The acceptance figures, ours over theirs as speed: above 1 is faster."""
    lines = list(lines)

    def some(name: str, dtype: str) -> list[Line]:
        return [line for line in lines if (line.set, line.dtype) == (name, dtype)]

    def im2win(line: Line) -> Candidate | None:
        return line.best(OURS, lambda one: one.algorithm == "im2win")

    def winograd(line: Line) -> Candidate | None:
        return line.best(OURS, lambda one: one.algorithm == "winograd" and one.form != "staged")

    def alone(line: Line) -> Candidate | None:
        return line.best(OURS, lambda one: one.algorithm == "winograd" and one.form != "staged" and one.workspace_bytes == 0)

    def any_winograd(line: Line) -> Candidate | None:
        return line.best(OURS, lambda one: one.algorithm == "winograd")

    def cudnn(keep: Callable[[Candidate], bool] = lambda _: True) -> Side:
        return lambda line: line.best(CUDNN, keep)

    def torch(line: Line) -> Candidate | None:
        return line.best(TORCH)

    mec, layers, resnet = some("im2win", "f32"), some("opencnn", "f32"), some("resnet50", "f32")
    gemm = cudnn(lambda one: one.algorithm in GEMM_CLASS)
    found = list(_versus("im2win with its transform, against cuDNN's GEMM-class algorithms", ratios(mec, im2win, gemm), 1.4, 1.0))
    found += _memory(mec, cudnn())
    found += _versus("fused Winograd, against all of cuDNN", ratios(layers, winograd, cudnn()), 1.0)
    found += _versus("Winograd, fused or staged, against all of cuDNN", ratios(layers, any_winograd, cudnn()), 1.0)
    found += _versus("fused Winograd without workspace, against all of cuDNN", ratios(layers, alone, cudnn()), 1.0)
    found += _versus("fused Winograd without workspace, against cuDNN without any", ratios(layers, alone, cudnn(_free)), 1.8)
    found.append(
        _share(
            "fused Winograd, share of layers on which it ran without workspace", [bool(alone(line)) for line in layers if winograd(line)]
        )
    )
    found += _versus("ResNet-50, planned, against PyTorch, f32", ratios(resnet, planned, torch), 1.3, 0.95)
    fastest = [line.tflops(one) for line in mec if line.label == "cv4" and (one := line.best(OURS))]
    found.append(_at_least("cv4, TFLOP/s of the direct method", max(fastest, default=None), 35))
    found += _regrets("planner's regret, f32", regrets([*mec, *layers, *resnet]))
    if others := [line for name in NETWORKS for line in some(name, "f32")]:
        names = " and ".join(NETWORKS)
        found += _versus(f"{names}, planned, against PyTorch, f32", ratios(others, planned, torch), 1.0)
        found += _regrets(f"{names}, planner's regret, f32", regrets(others))
    for dtype in DTYPES[1:]:
        found += _versus(f"ResNet-50, planned, against PyTorch, {dtype}", ratios(some("resnet50", dtype), planned, torch), 0.7)
    return found


def _regrets(what: str, regret: Ratios) -> list[Figure]:
    """Geometric mean and worst regret, with the planner's bars."""
    worst = regret.labels[regret.values.index(max(regret.values))] if regret.values else ""
    mean = _at_most(f"{what}: geometric mean", regret.mean if regret.values else None, 1.05, f"{len(regret.values)} layers")
    return [mean, _at_most(f"{what}: worst", max(regret.values, default=None), 1.25, worst)]


def _memory(mec: list[Line], cudnn: Side) -> list[Figure]:
    """Layers on which im2win needs less memory than cuDNN's fastest algorithm, and on which its fused form needed none."""
    stored: list[bool] = []
    fused: list[bool] = []
    for line in mec:
        theirs = cudnn(line)
        mine = line.best(OURS, lambda one: one.algorithm == "im2win" and one.form != "fused")
        own = line.of(OURS, lambda one: one.algorithm == "im2win" and one.form == "fused").values()
        if mine and theirs and mine.workspace_bytes is not None and theirs.workspace_bytes is not None:
            stored.append(mine.workspace_bytes < theirs.workspace_bytes)
        if own:
            fused.append(any(one.workspace_bytes == 0 for one in own))
    less = _share("im2win with its tensor, share of layers with less memory than cuDNN's fastest", stored)
    return [less, _share("im2win fused, share of layers on which it ran without workspace", fused)]


def forms(lines: Iterable[Line], family: str) -> dict[str, Ratios]:
    """form -> its seconds over those of the family's fastest form on the same layer: the cost of ablations and layouts."""
    found: dict[str, Ratios] = {}
    for line in lines:
        best: dict[str, float] = {}
        for one in line.of(OURS, lambda one: one.algorithm == family).values():
            best.setdefault(one.form, one.seconds or math.inf)
        for form, seconds in best.items():
            into = found.setdefault(form, Ratios([], []))
            into.labels.append(line.label)
            into.values.append(seconds / min(best.values()))
    return found


# Text


def summary(paths: Iterable[Path]) -> str:
    """Text: the figures and their bars, the speed of each library, and the forms of pysim's families."""
    lines = lines_of(paths)
    out = [f"{'figure':<82} {'value':>7}  {'bar':<14} {'':<4} where", ""]
    for one in figures(lines):
        value = "no data" if one.value is None else f"{one.value:.2f}"
        out.append(f"{one.what:<82} {value:>7}  {one.bar:<14} {'' if one.met is None else 'met' if one.met else 'MISS':<4} {one.where}")
    for name in (*SETS, *NETWORKS):
        for dtype in DTYPES:
            if mine := [line for line in lines if (line.set, line.dtype) == (name, dtype)]:
                rates = "TFLOP/s of the direct method: geometric mean (least), and the largest workspace"
                out += ["", f"{name} {dtype}, {len(mine)} layers, {rates}", ""]
                for party in parties(mine):
                    space = f"{party.workspace_bytes / 2**20:9.1f} MiB  {party.layers} of {len(mine)}"
                    out.append(f"  {party.name:<34} {party.mean:8.1f} ({party.least:6.1f})  {space}")
    for family in ("im2win", "winograd"):
        found = forms([line for line in lines if line.dtype == "f32"], family)
        if found:
            out += ["", f"{family} f32, seconds over those of the family's fastest form on the layer, geometric mean", ""]
            out += [f"  {form:<34} {one.mean:8.2f}  {len(one.values)} layers" for form, one in found.items()]
    for line in lines:
        out += [f"wrong: {line.label} {line.dtype} {name}: {one.wrong}" for name, one in line.candidates.items() if one.wrong]
    return "\n".join(out).rstrip() + "\n"


class Party(NamedTuple):
    """TFLOP/s and workspace bytes of one algorithm of a library, or of its fastest ("best"), on the layers that it ran."""

    name: str
    mean: float
    least: float
    workspace_bytes: int
    layers: int


def parties(lines: Iterable[Line]) -> list[Party]:
    """A row for each algorithm of each library, and for its best."""
    rows: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for line in lines:
        for who in (OURS, CUDNN, TORCH):
            timed = list(line.of(who).values())
            groups = {one.algorithm: one for one in reversed(timed) if one.algorithm} | ({"best": timed[0]} if timed else {})
            for algorithm, one in groups.items():
                rows.setdefault((who, algorithm), []).append((line.tflops(one), one.workspace_bytes or 0))
    out = []
    for (who, algorithm), found in sorted(rows.items(), key=lambda item: (item[0][0], item[0][1] == "best", item[0][1])):
        rates, spaces = [rate for rate, _ in found], [space for _, space in found]
        out.append(Party(f"{who} {algorithm}", geometric_mean(rates), min(rates), max(spaces), len(found)))
    return out
