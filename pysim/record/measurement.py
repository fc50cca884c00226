# SPDX-License-Identifier: Apache-2.0
"""Measurements of a plan and of its peers."""

from typing import Any, Literal

import msgspec

from pysim.record.description import seconds_text
from pysim.record.html import table
from pysim.record.state import RunState


class Ratio(msgspec.Struct, frozen=True):
    """Median time of a peer over that of the plan (above 1: the plan is faster), and its bootstrap 95 % interval."""

    value: float
    low: float
    high: float


class CoreThen(msgspec.Struct, frozen=True):
    """The core while samples were taken: its clock and the machine file's, and its multiply-adds per cycle over the file's. The latter is
    below 1 when a thread of another virtual machine shares the core (`pysim/measure/speed.py`). `left_out`: the share of all rounds that
    were left out because of such a thread. `line_seconds`: of several threads, the time of a cache line from one CPU to another."""

    clock_hz: float
    machine_clock_hz: float
    multiply_share: float
    left_out: float = 0.0
    line_seconds: float | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One problem: its plan, whether the result is correct, and the predicted, measured and peers' seconds of one call. If `core` gives the
    clock during the samples, `predicted_seconds` are at that clock; the plan's own prediction is at the machine file's clock.

    Times are medians over `samples` interleaved rounds in cache state `state`. A result that is not `correct` has no times; `reason` says
    what is wrong. If an emulator ran the plan's kernels (`executor`), nothing is measured: `static_seconds` is the time from static in-core
    cycles and exactly simulated caches (`pysim/cachemodel/simulator/simulated.py`), named by `static_kind`. `max_error`: the largest
    |result - reference| / (|A||B|) on random operands. `errors`: of "pysim" and each peer, the largest |result - reference| over the
    reference's root mean square, where a float64 reference is known; the plan states its own bound as `error`.
    `quartiles`: (first, median, third) in seconds, of "pysim" and each peer. `estimates`: seconds that analytic peers predict for their own
    kernels. `missing`: peers that did not run, with the reason. A peer with several algorithms ("cudnn GEMM") is timed with each and
    represented by the fastest, which `algorithms` names. `workspaces`: on a GPU, the bytes beside operands and result, of "pysim" and of
    each peer that reports them.
    `profile` splits one call: pack_seconds, kernel_seconds, packed_tiles, kernel_calls. `count`: occurrences of the problem in the request.
    `above_roof` names a time that is shorter than the multiply-adds or the operands' transfer allow. `taken`: share of the sampling time in
    which other processes had a CPU; the intervals of `ratios` are widened by it. On a GPU times are the device's; `launches` are the host's
    seconds per call, of "pysim" and each peer, where calls are short. `run` names the samples in the store.
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
    run: str = ""

    def _repr_html_(self) -> str:
        """What notebooks show: the times and errors of the plan and its peers."""
        measured, errors = self.measured_seconds, self.errors
        times = {"pysim": measured, **self.peers} if measured else {}
        rows = [
            (who, seconds_text(seconds), f"{seconds / measured:.2f}x" if measured else "-", f"{errors[who]:.1e}" if who in errors else "-")
            for who, seconds in times.items()
            if seconds
        ]
        if self.predicted_seconds:
            rows.insert(0, ("pysim, predicted", seconds_text(self.predicted_seconds), "", ""))
        verdict = "result right" if self.correct else self.reason or "result WRONG"
        heads = ("", "time", "over pysim's", "max error")
        return table(f"{self.problem} on {self.machine}: {verdict}", heads, rows, "\n".join(f"{a}: {b}" for a, b in self.missing.items()))


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """All samples (seconds per call) of one candidate, identified by problem, machine, kernel, schedule and state.

    `kernel` is a registry name with its `schedule` as JSON, or a peer's name with an empty schedule. Measurements of one `run` were
    interleaved: samples i of all candidates are neighbours in time. `environment`: machine and versions; `time`: ISO 8601, UTC.
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
