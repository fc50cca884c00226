# SPDX-License-Identifier: Apache-2.0
"""`pysim compare`: predicted times, measured times and other libraries' times. Each layer is checked, then timed in one run with its peers.

On an emulated machine nothing is timed; static+simulated times stand beside the predictions.
"""

from typing import TYPE_CHECKING, Any

import click

from pysim.commands import history, timing
from pysim.commands.common import (
    Cell,
    Column,
    Number,
    accuracy_options,
    every,
    json_option,
    layers_of,
    layout_option,
    machine_option,
    memory_limit_option,
    plan_options,
    plural,
    problems,
    put,
    say,
    seconds,
    size,
)
from pysim.commands.networks import measured, put_fingerprint, put_networks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pysim.onnx.compare import ModelComparison
    from pysim.record.measurement import Comparison

SHORT = {"im2col_openblas": "im2col", "onnxruntime": "onnxrt", "matmul_heuristics": "nvMMH"}  # column titles
WORKSPACES = {
    "pysim": "workspace",
    "cudnn": "cudnn's",
    "torch": "torch's",
}  # column titles of the libraries that report their GPU workspace


@click.command()
@problems
@machine_option
@click.option(
    "--peers", is_flag=True, help="Time every installed library (pysim doctor lists them), not only im2col + OpenBLAS (GPU: cuBLAS, cuDNN)."
)
@click.option("--cold", is_flag=True, help="Cold caches: operands rotate over buffers of twice the last-level cache.")
@click.option(
    "--seconds",
    "min_seconds",
    type=Number(0, 3600),
    default=0.1,
    show_default=True,
    help="Seconds of samples per library; on a CPU, timing stops earlier once all medians are known to half a percent.",
)
@plan_options(timing.algorithm_option, timing.name_option, timing.threads_option, layout_option(), memory_limit_option, accuracy_options)
@click.option("--save", "saved_as", metavar="NAME", help="Save the measurements under this name, as a baseline for later.")
@click.option("--resume", is_flag=True, help="With --save: layers that NAME has already are not measured again.")
@click.option(
    "--baseline",
    metavar="NAME",
    help="What changed since the measurements of this name; exit code 1 if a plan became slower, 4 if that is undecided.",
)
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
    options: dict[str, Any],
    saved_as: str | None,
    resume: bool,
    baseline: str | None,
    every: bool,
    as_json: bool,
) -> None:
    """Check the plan of each PROBLEM, time it interleaved with other libraries in one run, and show its predicted time.

    A library's column is its median time over pysim's: above 1 pysim is faster. Exit code 1 if a result is wrong, a model cannot run as a
    whole, or with --baseline a plan became slower; 4 if that is undecided. All samples go to the measurement store, even of an
    interrupted comparison. Of two files of `pysim run MODEL --fingerprint --json`: the first layer at which they part, exit code 1.

    On a GPU a convolution is compared with the fastest correct forward algorithm of cuDNN, with --peers also with PyTorch; columns
    show their workspaces. A matrix product is compared with cuBLAS.

    A machine that is emulated here (power10-e1050) is checked, not timed. `static+simulated` stands beside the prediction: in-core
    cycles from a scheduling model of the core, transfers from exactly simulated caches.

    \b
    Examples
      pysim compare resnet50
      pysim compare conv:mb1ic64ih56oc64kh3ph1 --peers --seconds 1
      pysim compare resnet50:mb32:f16 -m h200 --layout nhwc --peers
      pysim compare resnet50 --save monday; pysim compare resnet50 --baseline monday
    """
    from pysim.calibration import host

    if len(problems) == 2 and all(one.endswith(".json") for one in problems):
        ctx.exit(put_fingerprint(problems[:1], machine_name, options, problems[1], as_json))
    timing.check_plan(options)
    before = history.checked(saved_as, resume, baseline)
    layers, on = layers_of(problems, every), host.runnable_any(machine_name)
    timing.check_threads_and_layout(layers, on, options["threads"], options["layout"])
    from pysim.comparison.compare import plan_layers
    from pysim.machine.gpu import Gpu
    from pysim.peers import chosen

    peers_by_name, kinds = chosen("all" if peers else "default", on), {type(layer.workload) for layer in layers}
    emulated, on_gpu = host.executor_for(on).kind == "emulated", isinstance(on, Gpu)
    state, threads = "cold" if cold else "hot", options["threads"]
    planned = history.without_saved(plan_layers(layers, on, state=state, **options), saved_as if resume else None, state, threads)
    say(f"{on.description}; {state} caches, {options['layout'] + ' convolutions' if on_gpu else plural(threads, 'thread')}")
    kept = history.Kept(saved_as, before, history.beside(before, on), []) if saved_as or baseline else None
    how = {"threads": threads, "state": state, "min_seconds": min_seconds, **(history.carefully(threads, saved_as, on) if kept else {})}
    comparisons = timing.measured(planned, on, peers_by_name, kept, **how)
    networks = measured(problems, on, threads, peers, min_seconds)
    shown = [] if emulated else [name for name, peer in peers_by_name.items() if kinds & {*peer.computes}]
    results = timing.report(planned, comparisons, _columns(shown, emulated, on_gpu), as_json, **networks.document)
    if not as_json:
        _put_summary(results, networks.comparisons)
    changed = history.put_changes(kept, baseline, as_json) if kept and baseline else 0
    ctx.exit(networks.exit_code(timing.exit_code(results)) or changed)


def _columns(peers: "Sequence[str]", emulated: bool, on_gpu: bool) -> "list[Column[Comparison]]":
    from pysim.comparison.summary import OURS

    return [
        *(timing.static_times() if emulated else timing.times()),
        *timing.max_error(),
        *map(_ratio, peers),
        *(_space(name) for name in (OURS, *peers) if on_gpu and name in WORKSPACES),
        *timing.identity(),
    ]


def _ratio(name: str) -> "Column[Comparison]":
    """A peer's median time (or an analytic peer's estimate) over pysim's; a dash if the peer has none."""

    def cell(result: "Comparison") -> Cell:
        if name in result.estimates and result.measured_seconds:
            return f"{result.estimates[name] / result.measured_seconds:.2f}x", "dim"
        if name not in result.ratios:
            return "-"
        value = result.ratios[name].value
        return f"{value:.2f}x", "green" if value > 1 else "red"

    return Column(SHORT.get(name, name), cell, width=6)


def _space(name: str) -> "Column[Comparison]":
    """Workspace bytes; a dash if the library did not run."""
    return Column(WORKSPACES[name], lambda result: size(result.workspaces[name]) if name in result.workspaces else "-", width=9)


def _put_summary(results: "list[Comparison]", networks: "list[ModelComparison]") -> None:
    """Writes the summary per peer and for the predictions, then the layers that did not run, with reasons, then the networks."""
    from pysim.comparison.summary import summarise
    from pysim.peers.earlier import NAME as BASELINE

    summary = summarise(results)
    put("")
    put(timing.ERROR_LEGEND)
    if summary.get("peers"):
        put("times are medians; a library's column is its time over pysim's: above 1 pysim is faster")
    timing.put_state(results)
    for name, against in summary.get("peers", {}).items():
        if name == BASELINE:  # its changes have a table of their own
            continue
        faster = round(against["faster_share"] * against["layers"])
        text = f"{against['geometric_mean']:.3f}x geometric mean of {against['layers']}, faster on {faster} ({against['faster_share']:.0%})"
        put((f"{name:<16}", "bold"), f"{text}; {_version(results, name)}")
        if "error_ratio" in against:
            put(f"    its max error is {against['error_ratio']:.2f}x pysim's")
        if counted := against.get("algorithms"):
            put("    its fastest: " + ", ".join(f"{algorithm} on {count}" for algorithm, count in counted.items()))
        for problem in against["slower"][:8]:
            put(f"    slower: {problem}")
        if len(against["slower"]) > 8:
            put(f"    and {len(against['slower']) - 8} more; see their rows above")
    timing.put_prediction(summary)
    timing.put_static_prediction(summary)
    if len(results) > 1 and (total := summary.get("total_seconds")):
        counted = sum(result.count for result in results if result.correct)
        put(f"{plural(counted, 'layer')}: " + ", ".join(f"{name} {seconds(value)}" for name, value in total.items()))
    timing.put_failures(summary)
    missing: dict[tuple[str, str], int] = {}
    for result in results:
        for pair in result.missing.items():
            missing[pair] = missing.get(pair, 0) + 1
    for (name, reason), count in missing.items():
        say(f"{name} did not run on {count} of {plural(len(results), 'layer')}: {reason}")
    put_networks(networks)


def _version(results: "list[Comparison]", name: str) -> str:
    """The versions of a peer; the implementation that it picked may differ between layers."""
    return " | ".join(dict.fromkeys(result.versions[name] for result in results if name in result.versions))
