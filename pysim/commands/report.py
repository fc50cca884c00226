# SPDX-License-Identifier: Apache-2.0
"""`pysim report`: problems, comparisons and sweeps as one page to show."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pysim.commands.common import (
    Choice,
    OutputFile,
    accuracy_options,
    complete_machine,
    document,
    json_option,
    layout_option,
    memory_limit_option,
    plan_options,
    plural,
    progress,
    put_lines,
    read_model,
    say,
)
from pysim.errors import ProblemError
from pysim.file_io import written
from pysim.problem.text import model_file
from pysim.record.plan import BLOCKED

if TYPE_CHECKING:
    from pysim.report.rows import Found

FORMATS = {".html": "html", ".md": "md", ".csv": "csv", ".json": "json", ".onnx": "netron"}


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "-m",
    "--machine",
    "machine_names",
    default=("host",),
    show_default="host",
    multiple=True,
    shell_complete=complete_machine,
    help="Machines to plan problems for.",
)
@click.option("-o", "--output", type=OutputFile(*FORMATS), help="The file to write; without it, the report goes to stdout.")
@click.option("--format", "kind", type=Choice([*FORMATS.values(), "perfetto"]), help="Default: as the file's name says, else md.")
@click.option("--title", help="Title of the report; default: the sources.")
@plan_options(
    layout_option(*BLOCKED, text="Layout of a convolution's input and output: nhwc on GPUs, channel blocks (nchw16c) on CPUs."),
    memory_limit_option,
    accuracy_options,
)
@json_option
def report(
    sources: tuple[str, ...],
    machine_names: tuple[str, ...],
    output: Path | None,
    kind: str | None,
    title: str | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Write plans and measurements as one page: summary, table of layers, charts, and every plan with its reasons.

    A SOURCE is a problem, which is planned for each machine; a document of pysim plan, run or compare (--json > FILE.json); or the results
    of a sweep (FILE.jsonl). The HTML page needs no other file and no network.

    --format perfetto is a trace for ui.perfetto.dev: the layers one after another, predicted and measured. -o FILE.onnx is a copy of the
    model that a document measured, whose nodes carry plan and times where Netron shows them.

    \b
    Examples
      pysim report resnet50 -m zen4 -m zen5 -m h200 -o resnet50.html
      pysim compare resnet50 --peers --json > today.json; pysim report today.json -o today.html
      pysim report caches.jsonl --format csv
      pysim run model.onnx --json > today.json; pysim report today.json -o times.onnx
      pysim report today.json --format perfetto -o trace.json
    """
    from pysim.report import page
    from pysim.report.rows import rows_of

    kind = "json" if as_json else kind or (FORMATS[output.suffix] if output else "md")
    if kind == "json" and output:
        raise click.UsageError("--format json writes a document to stdout: pysim report ... --json > FILE")
    if kind == "html":
        page.vega()  # or its absence is told before the work
    with progress() as show:
        found = rows_of(sources, machine_names, read_model, options, show)
        show("")
    title = title or ", ".join(sources)
    if kind == "json":
        document(rows=found.rows, networks=found.networks)
        return
    if kind == "netron":
        _write_annotated(found.networks, output)
        return
    text = _text(kind, found, title)
    if output is None:
        put_lines(text.rstrip("\n"))
        return
    with written(output) as path:
        path.write_text(text, encoding="utf-8")
    say(f"wrote {output}")


def _text(kind: str, found: "Found", title: str) -> str:
    from pysim.report import page
    from pysim.report.trace import trace

    if kind == "perfetto":
        return trace(found)
    return page.comma_separated(found) if kind == "csv" else {"html": page.html, "md": page.markdown}[kind](found, title)


def _write_annotated(networks: "list[dict[str, Any]]", output: Path | None) -> None:
    from pysim.onnx.annotate import annotate

    if output is None or len(networks) != 1:
        right = "give -o FILE.onnx, and one document of pysim run or compare of one model"
        raise ProblemError(f"netron's format is a copy of one model: {right}")
    (network,) = networks
    model = model_file(network["model"])
    with written(output) as path:
        nodes = annotate(model.path if model else Path(network["model"]), network.get("layers", ()), path)
    say(f"wrote {output}: {plural(nodes, 'node')} with plan and times")
