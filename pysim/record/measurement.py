# SPDX-License-Identifier: Apache-2.0
"""What was measured of a plan and of its peers."""

from typing import Any, Literal

import msgspec

from pysim.record.state import RunState


class Ratio(msgspec.Struct, frozen=True):
    """Median time of a peer over that of the plan (above 1: the plan is faster), and its bootstrap 95 % interval."""

    value: float
    low: float
    high: float


class CoreThen(msgspec.Struct, frozen=True):
    """The core while samples were taken: its clock, beside the machine file's, and of the multiply-adds that it makes in a cycle by that
    file the share that it made; less than all where another machine's thread had the rest (`pysim/measure/speed.py`)."""

    clock_hz: float
    machine_clock_hz: float
    multiply_share: float


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: its plan, whether the result is right, and predicted, measured and peers' seconds of one call. Where `core` says what
    the clock was when samples were taken, `predicted_seconds` are at that clock; the plan's own are at the machine file's.

    Times are medians over `samples` interleaved rounds in cache state `state`; none is given unless `correct`, and
    then `reason` says what is wrong. Where the plan's kernels ran in an emulator (`executor`) nothing is measured: `static_seconds` is
    then what static in-core cycles and exactly simulated caches make of the plan (`pysim/cachemodel/simulator/simulated.py`), and
    `static_kind` says so. `max_error` is the largest |result - reference| / (|A||B|) on random operands;
    `errors`, of "pysim" and of each peer, the largest |result - reference| over the reference's root mean square there, where a float64
    reference is known; what the plan states is its `error`.
    `quartiles` are (first, median, third) in seconds of "pysim" and of each peer, `estimates` the seconds that analytic
    peers expect of their own kernels, `missing` the peers that did not run, with the reason; "cudnn GEMM" is an algorithm of a peer.
    A peer that has several is timed with each, and stands here as its fastest: `algorithms` says which that was. On a GPU `workspaces` are
    the bytes beside operands and result of "pysim" and of each peer that says so.
    `profile` splits one call: pack_seconds, kernel_seconds, packed_tiles, kernel_calls. `count` is how often the problem occurs in what
    was asked for. `above_roof` says which time is less than multiply-adds or operands take. `taken` is the share of the time of all
    samples in which a CPU was others'; the intervals of `ratios` are wider by as much. On a GPU times are the device's, and `launches` the
    host's seconds for making a call, of "pysim" and of each peer, where calls are short.
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
    errors: dict[str, float] = {}
    estimates: dict[str, float] = {}
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    algorithms: dict[str, str] = {}
    workspaces: dict[str, int] = {}
    profile: dict[str, float] | None = None
    machine: str = ""
    executor: Literal["local", "emulated"] = "local"
    state: RunState = "hot"
    threads: int = 1
    count: int = 1
    reason: str = ""
    above_roof: str = ""
    taken: float | None = None
    core: CoreThen | None = None
    launches: dict[str, float] = {}


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
    state: RunState
    samples: tuple[float, ...]
    environment: dict[str, str]
    time: str
    run: str
