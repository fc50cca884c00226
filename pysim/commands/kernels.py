# SPDX-License-Identifier: Apache-2.0
"""`pysim kernels`: the kernels of the registry, and which of them this computer and this build can run."""

import click

from pysim.commands.common import Cell, Column, document, json_option, put, put_table, say
from pysim.errors import MissingError, ProblemError, nearest
from pysim.registry.cpu import FORMS, Kernel
from pysim.registry.cpu import cpu_kernels as registry
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernels, gemm_kernels


@click.command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--cuda", is_flag=True, help="List CUDA kernels instead.")
@json_option
def kernels(words: tuple[str, ...], cuda: bool, as_json: bool) -> None:
    """List the micro-kernels whose name contains every WORD. A name is <type>_<form>_<windows>x<filters>__<target>.

    \b
    Examples
      pysim kernels avx512 f32
      pysim kernels --cuda f16 wgmma
      pysim kernels --cuda winograd
    """
    if cuda:
        _cuda(words, as_json)
        return
    rows = [row for row in registry() if all(word in row.name for word in words)]
    if not rows:
        raise ProblemError(_no_match(words))
    available = _available()
    if as_json:
        document(kernels=[_document(row, available) for row in rows])
        return
    columns: list[Column[Kernel]] = [
        Column("kernel", lambda row: (row.name, "bold"), left=True),
        Column("here", lambda row: _said(_here(row, available)), left=True),
        Column("target", lambda row: row.target, left=True),
        Column("type", lambda row: row.dtype, left=True),
        Column("form", lambda row: row.form, left=True),
        Column("windows", lambda row: str(row.windows)),
        Column("filters", lambda row: str(row.filters)),
        Column("one multiply-add", lambda row: f"{row.lane_windows} x {row.lane_filters}"),
    ]
    put_table(columns, rows)
    put("")
    for form in dict.fromkeys(row.form for row in rows):
        put(f"{form}: {FORMS[form]}")
    if available is not None:
        put(f"{sum(row.name in available for row in rows)} of {len(rows)} kernels run on this computer")


def _cuda(words: tuple[str, ...], as_json: bool) -> None:
    """The rows of native/cuda/gemm and conv."""
    products = [row for row in gemm_kernels() if all(word in row.name for word in words)]
    convolutions = [row for row in conv_kernels() if all(word in row.name for word in words)]
    if not products and not convolutions:
        raise ProblemError(f"no CUDA kernel's name contains all of {', '.join(words) or 'nothing'}; `pysim kernels --cuda` lists them")
    rows: list[GemmKernel | ConvKernel] = [*products, *convolutions]
    why_not = _refusals(rows)
    if as_json:
        fields = ({name: getattr(row, name) for name in row.__struct_fields__} for row in rows)
        heres = ({"available": why_not and not why_not[row.name], "refusal": why_not and why_not[row.name]} for row in rows)
        document(kernels=[{"name": row.name, **of, **here} for row, of, here in zip(rows, fields, heres, strict=True)])
        return
    if products:
        put_table(_product_columns(why_not), products)
        put("")
    if convolutions:
        put_table(_convolution_columns(why_not), convolutions)
        put("")
    put(
        "tiles per block, per warp (wgmma: per warpgroup) and per thread (tensor cores: per instruction); capability: minimum, with = exact"
    )
    reasons = dict.fromkeys(reason.partition(row)[2].strip() for row, reason in (why_not or {}).items() if reason)
    for reason in reasons:
        put(f"no: the kernel {reason}")
    if convolutions:
        put("a convolution's block is filters x windows x k; outputs: the output tile of Winograd, F(2x2) or F(4x4), which is one window")


def _refusals(rows: list[GemmKernel | ConvKernel]) -> dict[str, str] | None:
    """For each kernel the reason why the GPU here cannot run it, "" if it can; None if that is unknown, with the reason on stderr."""
    from pysim.runtime import cuda

    try:
        return {row.name: cuda.refusal(row) for row in rows}
    except MissingError as error:
        say(f"cannot tell which kernels run here: {error}")
        return None


def _said(here: bool | None) -> Cell:
    """Yes, no, or ? if unknown."""
    return {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}[here]


def _runs(row: GemmKernel | ConvKernel, why_not: dict[str, str] | None) -> Cell:
    return _said(None if why_not is None else not why_not[row.name])


def _capability(row: GemmKernel | ConvKernel) -> str:
    return f"{'=' * row.exact_capability}{row.capability / 10}"


def _product_columns(why_not: dict[str, str] | None) -> list[Column[GemmKernel]]:
    return [
        Column("product", lambda row: (row.name, "bold"), left=True),
        Column("here", lambda row: _runs(row, why_not), left=True),
        Column("block", lambda row: f"{row.block_m}x{row.block_n}x{row.block_k}", left=True),
        Column("warp", lambda row: f"{row.warp_m}x{row.warp_n}", left=True),
        Column("thread", lambda row: f"{row.thread_m}x{row.thread_n}", left=True),
        Column("stages", lambda row: str(row.stages)),
        Column("cluster", lambda row: f"{row.cluster_m}x{row.cluster_n}"),
        Column("threads", lambda row: str(row.tiles.threads)),
        Column("capability", _capability),
    ]


def _convolution_columns(why_not: dict[str, str] | None) -> list[Column[ConvKernel]]:
    def tiled(row: ConvKernel, text: str) -> str:
        return text if row.block_filters else "-"

    return [
        Column("convolution", lambda row: (row.name, "bold"), left=True),
        Column("here", lambda row: _runs(row, why_not), left=True),
        Column("block", lambda row: tiled(row, f"{row.block_filters}x{row.block_windows}x{row.block_k}"), left=True),
        Column("warp", lambda row: tiled(row, f"{row.warp_filters}x{row.warp_windows}"), left=True),
        Column("thread", lambda row: tiled(row, f"{row.thread_filters}x{row.thread_windows}"), left=True),
        Column("stages", lambda row: tiled(row, str(row.stages))),
        Column("outputs", lambda row: f"{row.outputs}x{row.outputs}"),
        Column("capability", _capability),
    ]


def _no_match(words: tuple[str, ...]) -> str:
    """The message if no kernel matches, with the nearest name or part of a name."""
    known = {part for row in registry() for part in (row.name, row.target, row.dtype, row.form, f"{row.windows}x{row.filters}")}
    odd = next((word for word in words if not any(word in row.name for row in registry())), None)
    if odd is None:
        return f"no kernel's name contains all of {', '.join(words)}; `pysim kernels` lists them"
    close = nearest(odd, sorted(known))
    return f'no kernel\'s name contains "{odd}"; ' + (f'did you mean "{close}"? ' if close else "") + "`pysim kernels` lists them"


def _available() -> frozenset[str] | None:
    """Names of the kernels that run here; None without the native library, with the reason on stderr."""
    from pysim.runtime import cpu as runtime

    try:
        return runtime.available_kernels()
    except MissingError as error:
        say(f"cannot tell which kernels run here: {error}")
        return None


def _here(row: Kernel, available: frozenset[str] | None) -> bool | None:
    return None if available is None else row.name in available


def _document(row: Kernel, available: frozenset[str] | None) -> dict[str, object]:
    fields = ("name", "target", "dtype", "form", "windows", "filters", "lane_windows", "lane_filters")
    return {name: getattr(row, name) for name in fields} | {"available": _here(row, available)}
