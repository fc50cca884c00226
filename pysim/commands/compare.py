# SPDX-License-Identifier: Apache-2.0
"""`pysim compare`: predicted beside measured beside other libraries, each layer checked first and timed in one run with its peers.

On an emulated machine: predicted beside static+simulated, and nothing timed.
"""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands import models, timing
from pysim.commands.common import (
    Cell,
    Column,
    Number,
    accuracy_options,
    asked_of_plans,
    every,
    json_option,
    layers_of,
    layout_option,
    machine_option,
    memory_limit_option,
    plural,
    problems,
    put,
    say,
    seconds,
    size,
)

if TYPE_CHECKING:
    from pysim.record.measurement import Comparison

SHORT = {"im2col_openblas": "im2col", "onnxruntime": "onnxrt", "matmul_heuristics": "nvMMH"}  # titles of columns
WORKSPACES = {"pysim": "workspace", "cudnn": "cudnn's", "torch": "torch's"}  # titles, of those who say what memory they take on a GPU


@click.command()
@problems
@machine_option
@click.option(
    "--peers", is_flag=True, help="Beside every peer (pysim doctor lists a CPU's), not im2col + OpenBLAS (a GPU: cuBLAS, cuDNN) alone."
)
@click.option("--cold", is_flag=True, help="No operand is in a cache: buffers rotate over twice the last-level cache.")
@click.option(
    "--seconds",
    "min_seconds",
    type=Number(0, 3600),
    default=0.2,
    show_default=True,
    help="Least time of samples per contender; on a CPU less where all medians are certain to half a percent before.",
)
@asked_of_plans(timing.algorithm_option, timing.name_option, timing.threads_option, layout_option(), memory_limit_option, accuracy_options)
@every
@json_option
@click.pass_context
def compare(
    ctx: click.Context,
    problems: tuple[str, ...],
    machine_name: str,
    peers: bool,
    cold: bool,
    min_seconds: float,
    asked: dict[str, Any],
    every: bool,
    as_json: bool,
) -> None:
    """Check the plan of each PROBLEM, then time it with its peers in one run, interleaved, and show its predicted time.

    A peer's column is its time over pysim's, medians: above 1 pysim is faster. Exit code 1 if a result is wrong. All samples go
    to the measurement store (pysim doctor names the file); nothing measured is lost when a comparison is interrupted.

    On a GPU the peer of a convolution is the fastest right one of all of cuDNN's forward algorithms, with --peers also PyTorch; columns
    show the workspace of each. The peer of a product is cuBLAS.

    A machine that is emulated here (power10-e1050) is checked, not timed: beside the prediction stands `static+simulated`, in-core
    cycles from a scheduling model of the core and transfers from exactly simulated caches.

    \b
    Examples
      pysim compare resnet50
      pysim compare conv:mb1ic64ih56oc64kh3ph1 --peers --seconds 1
      pysim compare resnet50 -m power10-e1050
      pysim compare resnet50:mb32:f16 -m h200 --layout nhwc --peers
    """
    from pysim.calibration import host

    layers, on = layers_of(problems, every), host.runnable_any(machine_name)
    timing.refuse_on_gpu(on, threads=asked["threads"] > 1)
    from pysim.comparison.summary import OURS, summarise
    from pysim.machine.gpu import Gpu
    from pysim.peers import chosen

    beside, kinds = chosen("all" if peers else "default", on), {type(layer.workload) for layer in layers}
    executor, on_gpu = host.executor(on), isinstance(on, Gpu)
    state = "cold" if cold else "hot"
    planned = timing.plan_layers(layers, on, state=state, **asked)
    threads, layout = asked["threads"], asked["layout"]
    say(f"{on.description}; {state} caches, {f'{layout} convolutions' if on_gpu else plural(threads, 'thread')}")
    found = timing.measured(planned, on, beside, executor, threads=threads, state=state, min_seconds=min_seconds)
    networks = models.measured(problems, on, threads, peers, min_seconds)
    shown = [] if executor.kind == "emulated" else [name for name, peer in beside.items() if kinds & {*peer.computes}]
    columns = [
        *(timing.static_times() if executor.kind == "emulated" else timing.times()),
        *timing.max_error(),
        *map(_ratio, shown),
        *(_space(name) for name in (OURS, *shown) if on_gpu and name in WORKSPACES),
        *timing.identity(),
    ]
    done = timing.report(planned, found, columns, as_json, **({"models": networks} if networks else {}))
    if not as_json:
        _put_summary(summarise(done), done)
        models.put_models(networks)
    ctx.exit(models.exit_code(timing.exit_code(done), networks))


def _ratio(name: str) -> "Column[Comparison]":
    """A peer's median time (an analytic one's estimate) over ours; a dash where the peer has none."""

    def cell(one: "Comparison") -> Cell:
        if name in one.estimates and one.measured_seconds:
            return f"{one.estimates[name] / one.measured_seconds:.2f}x", "dim"
        if name not in one.ratios:
            return "-"
        value = one.ratios[name].value
        return f"{value:.2f}x", "green" if value > 1 else "red"

    return Column(SHORT.get(name, name), cell, width=6)


def _space(name: str) -> "Column[Comparison]":
    """Bytes beside the operands; a dash where the peer did not run."""
    return Column(WORKSPACES[name], lambda one: size(one.workspaces[name]) if name in one.workspaces else "-", width=9)


def _put_summary(summary: dict[str, Any], done: "list[Comparison]") -> None:
    """What the rows amount to, per peer and for the predictor, then what did not run and why."""
    put("")
    put(timing.SAYS_ERROR)
    if summary.get("peers"):
        put("medians; a library's column is its time over pysim's: above 1 pysim is faster")
    timing.put_state(done)
    for name, against in summary.get("peers", {}).items():
        faster = round(against["faster_share"] * against["layers"])
        told = f"{against['geometric_mean']:.3f}x geometric mean of {against['layers']}, faster on {faster} ({against['faster_share']:.0%})"
        put((f"{name:<16}", "bold"), f"{told}; {_version(done, name)}")
        if "error_ratio" in against:
            put(f"    its max error is {against['error_ratio']:.2f}x pysim's")
        if counted := against.get("algorithms"):
            put("    its fastest: " + ", ".join(f"{algorithm} on {count}" for algorithm, count in counted.items()))
        for problem in against["slower"][:8]:
            put(f"    slower: {problem}")
        if len(against["slower"]) > 8:
            put(f"    and {len(against['slower']) - 8} more, whose ratios stand above")
    timing.put_prediction(summary)
    timing.put_static_prediction(summary)
    if len(done) > 1 and (total := summary.get("total_seconds")):
        counted = sum(one.count for one in done if one.correct)
        put(f"{plural(counted, 'layer')}: " + ", ".join(f"{name} {seconds(value)}" for name, value in total.items()))
    timing.put_failures(summary)
    missing: dict[tuple[str, str], int] = {}
    for one in done:
        for pair in one.missing.items():
            missing[pair] = missing.get(pair, 0) + 1
    for (name, reason), count in missing.items():
        say(f"{name} did not run on {count} of {plural(len(done), 'layer')}: {reason}")


def _version(done: "list[Comparison]", name: str) -> str:
    """The version of a peer; which implementation it picked may differ from layer to layer."""
    return " | ".join(dict.fromkeys(one.versions[name] for one in done if name in one.versions))
