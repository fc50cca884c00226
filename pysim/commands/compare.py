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
    error,
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
@timing.algorithm_option
@timing.name_option
@timing.threads_option
@click.option(
    "--seconds",
    "min_seconds",
    type=Number(0, 3600),
    default=0.2,
    show_default=True,
    help="Least time of samples per contender; on a CPU less where all medians are certain to half a percent before.",
)
@layout_option()
@memory_limit_option
@accuracy_options
@every
@json_option
@click.pass_context
def compare(
    ctx: click.Context,
    problems: tuple[str, ...],
    machine_name: str,
    peers: bool,
    cold: bool,
    algorithm: str | None,
    name: str | None,
    threads: int,
    min_seconds: float,
    layout: str,
    memory_limit: int | None,
    accuracy: str,
    error_limit: float | None,
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
    timing.refuse_on_gpu(on, threads=threads > 1)
    from pysim.comparison.summary import LARGE_ERROR, OURS, summarise
    from pysim.machine.gpu import Gpu
    from pysim.peers import chosen

    beside, kinds = chosen("all" if peers else "default", on), {type(layer.workload) for layer in layers}
    executor = host.executor(on)
    emulated, on_gpu = executor.kind == "emulated", isinstance(on, Gpu)
    shown = [] if emulated else [name for name, peer in beside.items() if kinds & {*peer.computes}]
    spaces = [name for name in (OURS, *shown) if name in WORKSPACES] if on_gpu else []
    columns = [Column("result", 6), Column("static+sim", 10)] if emulated else [Column("measured", 8)]
    columns += [Column("predicted", 9), Column("error", 6), timing.MAX_ERROR]
    columns += [Column(SHORT.get(name, name), max(6, len(SHORT.get(name, name)))) for name in shown]
    columns += [Column(WORKSPACES[name], 9) for name in spaces]
    columns += [Column("x", 2), Column("problem", 7, left=True)]

    def row(one: "Comparison") -> list[Cell]:
        times = timing.static_times if emulated else timing.times
        others = [*(_ratio(one, name) for name in shown), *(_space(one, name) for name in spaces)]
        return [*times(one, LARGE_ERROR), error(one.errors.get(OURS)), *others, str(one.count), one.problem]

    state = "cold" if cold else "hot"
    asked = {"state": state, "layout": layout, "memory_limit": memory_limit, "algorithm": algorithm, "name": name}
    planned = timing.plan_layers(layers, on, **asked, accuracy=accuracy, error_limit=error_limit, threads=threads)
    say(f"{on.description}; {state} caches, {f'{layout} convolutions' if on_gpu else plural(threads, 'thread')}")
    found = timing.measured(planned, on, beside, executor, threads=threads, state=state, min_seconds=min_seconds)
    networks = models.measured(problems, on, threads, peers, min_seconds)
    done = timing.report(planned, found, columns, row, as_json, **({"models": networks} if networks else {}))
    if not as_json:
        _put_summary(summarise(done), done, threads)
        models.put_models(networks)
    ctx.exit(models.exit_code(timing.exit_code(done), networks))


def _ratio(one: "Comparison", name: str) -> Cell:
    """A peer's median time (an analytic one's estimate) over ours; a dash where the peer has none."""
    if name in one.estimates and one.measured_seconds:
        return f"{one.estimates[name] / one.measured_seconds:.2f}x", "dim"
    if name not in one.ratios:
        return "-"
    value = one.ratios[name].value
    return f"{value:.2f}x", "green" if value > 1 else "red"


def _space(one: "Comparison", name: str) -> Cell:
    """Bytes beside the operands; a dash where the peer did not run."""
    return size(one.workspaces[name]) if name in one.workspaces else "-"


def _put_summary(summary: dict[str, Any], done: "list[Comparison]", threads: int) -> None:
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
