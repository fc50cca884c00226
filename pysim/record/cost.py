# SPDX-License-Identifier: Apache-2.0
"""What is kept about a plan: its predicted cost, the choices that were turned down, what was measured."""

from typing import Any, Literal

import msgspec


class Cost(msgspec.Struct, frozen=True):
    """Predicted cost of one run of a plan (`pysim/cachemodel/cpu/cost.py` says how).

    `terms` are the cycles of each part of the work, compute first (kernel, call, store, pack), then one transfer term
    for each level that supplies data. `levels` says for each of those suppliers what crossed from it into the level
    above: "lines", "bytes" (also per operand: "input_bytes", "packed_bytes", "filters_bytes", "output_bytes"), and the
    "cycles" that it is charged.
    """

    cycles: float
    seconds: float
    bound_by: str
    levels: dict[str, dict[str, float]]
    terms: dict[str, float]


class CsaCost(msgspec.Struct, frozen=True):
    """Cost in SConv's slicing analysis: cache lines by the level that supplies them, and their latency in cycles.

    `cold` + `extra` lines come from memory, `l3` from L3, `l2` from L2; `cost` is equation 6
    (`pysim/cachemodel/cpu/csa.py`).
    """

    cold: int
    extra: int
    l3: int
    l2: int
    cost: int


class Rejected(msgspec.Struct, frozen=True):
    """Something that was not chosen, and why."""

    what: str
    reason: str


class Ratio(msgspec.Struct, frozen=True):
    """Median time of a peer over that of the plan (above 1: the plan is faster), and its bootstrap 95 % interval."""

    value: float
    low: float
    high: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: its plan, whether the result is right, and predicted, measured and peers' seconds of one call.

    Times are medians over `samples` interleaved rounds in cache state `state`; none is given unless `correct`, and
    then `reason` says what is wrong. Where the plan's kernels ran in an emulator (`executor`) nothing is measured: `static_seconds` is
    then what static in-core cycles and exactly simulated caches make of the plan (`pysim/cachemodel/simulator/simulated.py`), and
    `static_kind` says so. `max_error` is the largest |result - reference| / (|A||B|) on random operands.
    `quartiles` are (first, median, third) in seconds of "pysim" and of each peer, `estimates` the seconds that analytic
    peers expect of their own kernels, `missing` the peers that did not run, with the reason; "cudnn GEMM" is an algorithm of a peer.
    A peer that has several is timed with each, and stands here as its fastest: `algorithms` says which that was. On a GPU `workspaces` are
    the bytes beside operands and result of "pysim" and of each peer that says so.
    `profile` splits one call: pack_seconds, kernel_seconds, packed_tiles, kernel_calls. `count`
    is how often the problem occurs in what was asked for.
    """

    problem: str
    label: str
    plan: dict[str, Any]
    correct: bool
    max_error: float | None = None
    predicted_seconds: float | None = None
    measured_seconds: float | None = None
    static_seconds: float | None = None
    static_kind: Literal["static+simulated"] | None = None
    samples: int = 0
    peers: dict[str, float] = {}
    ratios: dict[str, Ratio] = {}
    quartiles: dict[str, tuple[float, float, float]] = {}
    estimates: dict[str, float] = {}
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    algorithms: dict[str, str] = {}
    workspaces: dict[str, int] = {}
    profile: dict[str, float] | None = None
    machine: str = ""
    executor: Literal["local", "emulated"] = "local"
    state: Literal["hot", "cold"] = "hot"
    threads: int = 1
    count: int = 1
    reason: str = ""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """All samples (seconds per call) of one contender, with what names it: problem, machine, kernel, schedule, state.

    `kernel` is a registry name with its `schedule` as JSON, or a peer's name with an empty schedule. Measurements of
    one `run` were interleaved: sample i of one and sample i of another are neighbours in time. `environment` says
    where and with which versions, `time` when (ISO 8601, UTC).
    """

    problem: str
    machine: str
    kernel: str
    schedule: str
    state: Literal["hot", "cold"]
    samples: tuple[float, ...]
    environment: dict[str, str]
    time: str
    run: str
