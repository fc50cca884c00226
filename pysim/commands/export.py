# SPDX-License-Identifier: Apache-2.0
"""`pysim export`: a plan as a folder of C or CUDA."""

from pathlib import Path
from typing import Any

import click

from pysim.commands import timing
from pysim.commands.common import (
    accuracy_options,
    document,
    json_option,
    layers_of,
    layout_option,
    machine_option,
    memory_limit_option,
    plan_options,
    put,
    refuse_layout,
)
from pysim.record.plan import BLOCKED


@click.command()
@click.argument("problem", metavar="PROBLEM")
@machine_option
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The folder to write: new, or empty.")
@click.option("--epilogue", metavar="EXPRESSION", help='What becomes of a result x as it is stored, e.g. "x * tanh(x)", "max(x, 0)".')
@click.option("--micro-kernel", metavar="4x16", help="Only kernels of this shape, windows x filters, or of this name.")
@plan_options(
    timing.algorithm_option,
    timing.name_option,
    timing.threads_option,
    layout_option(*BLOCKED, text="Layout of a convolution's input and output: nhwc on GPUs, channel blocks (nchw16c) on CPUs."),
    memory_limit_option,
    accuracy_options,
)
@json_option
def export(
    problem: str,
    machine_name: str,
    output: Path,
    epilogue: str | None,
    micro_kernel: str | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Write the plan of PROBLEM as C (for a GPU: CUDA) that needs neither pysim nor Python: kernel, schedule, packing, test, benchmark.

    The sources are those of pysim's own library, so the program has its bits and its speed. For a machine that has a file (pysim machines),
    no hardware and no compiler is needed to write it.

    \b
    Examples
      pysim export conv:mb1ic64ih56oc64kh3ph1 -m zen4 -o layer && make -C layer test benchmark
      pysim export gemm:512x2048x1024 -m power10-e1050 -o product
      pysim export conv:ic64ih56oc64kh1 -o layer --epilogue "x > 0 ? x : 0.1 * x"
    """
    from pysim import standalone

    timing.check_plan(options)
    layers = layers_of([problem])
    if len(layers) > 1:
        raise click.UsageError(f"{problem} is {len(layers)} problems; export writes one, e.g. {layers[0].workload.text}")
    refuse_layout(layers, options["layout"])
    plan = standalone.export(layers[0].workload, output, machine_name, epilogue, micro_kernel=micro_kernel, **options)
    if as_json:
        files = sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
        document(exports=[{"directory": str(output), "files": files, "plan": plan.to_dict()}])
        return
    put(f"{plan.problem} on {plan.machine}: {plan.algorithm}, {plan.kernel}")
    put(f"make -C {output} test benchmark")
