# SPDX-License-Identifier: Apache-2.0
"""`pysim kernels`: the rows of the registry, and which of them this computer and this build can run."""

import click

from pysim.commands.common import Cell, document, json_option, put, put_table, say
from pysim.errors import MissingError, ProblemError, nearest
from pysim.registry.cpu import FORMS, Kernel
from pysim.registry.cpu import cpu_kernels as registry
from pysim.registry.cuda import ConvKernel, GemmKernel, conv_kernels, gemm_kernels


@click.command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@click.option("--cuda", is_flag=True, help="The CUDA kernels of matrix products and convolutions instead.")
@json_option
def kernels(words: tuple[str, ...], cuda: bool, as_json: bool) -> None:
    """The micro-kernels whose name has every WORD in it, or all; a name is <type>_<form>_<windows>x<filters>__<target>.

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
    titles = ["kernel", "here", "target", "type", "form", "windows", "filters", "one multiply-add"]
    put_table(titles, [_cells(row, available) for row in rows], left=["kernel", "here", "target", "type", "form"])
    put("")
    for form in dict.fromkeys(row.form for row in rows):
        put(f"{form}: {FORMS[form]}")
    if available is not None:
        put(f"{sum(row.name in available for row in rows)} of {len(rows)} run on this computer")


def _cuda(words: tuple[str, ...], as_json: bool) -> None:
    """The rows of native/cuda/gemm and conv."""
    products = [row for row in gemm_kernels() if all(word in row.name for word in words)]
    convolutions = [row for row in conv_kernels() if all(word in row.name for word in words)]
    if not products and not convolutions:
        raise ProblemError(f"no CUDA kernel's name has all of {', '.join(words) or 'nothing'}; `pysim kernels --cuda` lists them")
    rows: list[GemmKernel | ConvKernel] = [*products, *convolutions]
    why_not = _refusals(rows)
    if as_json:
        fields = ({name: getattr(row, name) for name in row.__struct_fields__} for row in rows)
        heres = ({"available": why_not and not why_not[row.name], "refusal": why_not and why_not[row.name]} for row in rows)
        document(kernels=[{"name": row.name, **of, **here} for row, of, here in zip(rows, fields, heres, strict=True)])
        return
    if products:
        titles = ["product", "here", "block", "warp", "thread", "stages", "cluster", "threads", "capability"]
        put_table(titles, [_with_here(_gemm_cells(row, row.tiles.threads), why_not, row.name) for row in products], left=titles[:5])
        put("")
    if convolutions:
        titles = ["convolution", "here", "block", "warp", "thread", "stages", "outputs", "capability"]
        put_table(titles, [_with_here(_conv_cells(row), why_not, row.name) for row in convolutions], left=titles[:5])
        put("")
    put("warp: of a warp (wgmma: of a warpgroup); thread: of a thread (tensor cores: of one instruction); capability: at least, = alone")
    reasons = dict.fromkeys(reason.partition(row)[2].strip() for row, reason in (why_not or {}).items() if reason)
    for reason in reasons:
        put(f"no: the kernel {reason}")
    if convolutions:
        put("blocks of a convolution are filters x windows x k; outputs: F(2x2) and F(4x4) of Winograd, whose windows are such squares")


def _refusals(rows: list[GemmKernel | ConvKernel]) -> dict[str, str] | None:
    """Why the GPU here does not run each row, "" where it does; None, and why on stderr, where that is not known."""
    from pysim.runtime import cuda

    try:
        return {row.name: cuda.refusal(row) for row in rows}
    except MissingError as error:
        say(f"which of them run here is not known: {error}")
        return None


def _with_here(cells: list[Cell], why_not: dict[str, str] | None, name: str) -> list[Cell]:
    here: Cell = ("?", "yellow") if why_not is None else ("no", "red") if why_not[name] else ("yes", "green")
    return [cells[0], here, *cells[1:]]


def _capability(row: GemmKernel | ConvKernel) -> str:
    return f"{'=' * row.exact_capability}{row.capability / 10}"


def _gemm_cells(row: GemmKernel, threads: int) -> list[Cell]:
    block, warp = f"{row.block_m}x{row.block_n}x{row.block_k}", f"{row.warp_m}x{row.warp_n}"
    shapes: list[Cell] = [(row.name, "bold"), block, warp, f"{row.thread_m}x{row.thread_n}", str(row.stages)]
    return [*shapes, f"{row.cluster_m}x{row.cluster_n}", str(threads), _capability(row)]


def _conv_cells(row: ConvKernel) -> list[Cell]:
    sizes = (
        (row.block_filters, row.block_windows, row.block_k),
        (row.warp_filters, row.warp_windows),
        (row.thread_filters, row.thread_windows),
    )
    tiles = ["x".join(map(str, size)) if row.block_filters else "-" for size in sizes]
    outputs = f"{row.outputs}x{row.outputs}"
    return [(row.name, "bold"), *tiles, str(row.stages) if row.block_filters else "-", outputs, _capability(row)]


def _no_match(words: tuple[str, ...]) -> str:
    """The nearest row, by its name or by the columns that names are built from."""
    known = {part for row in registry() for part in (row.name, row.target, row.dtype, row.form, f"{row.windows}x{row.filters}")}
    odd = next((word for word in words if not any(word in row.name for row in registry())), None)
    if odd is None:
        return f"no kernel's name has all of {', '.join(words)}; `pysim kernels` lists them"
    close = nearest(odd, sorted(known))
    return f'no kernel\'s name has "{odd}"; ' + (f'did you mean "{close}"? ' if close else "") + "`pysim kernels` lists them"


def _available() -> frozenset[str] | None:
    """Names of the rows that run here; None, and why on stderr, without the native library."""
    from pysim.runtime import cpu as runtime

    try:
        return runtime.available_kernels()
    except MissingError as error:
        say(f"which of them run here is not known: {error}")
        return None


def _here(row: Kernel, available: frozenset[str] | None) -> bool | None:
    return None if available is None else row.name in available


def _cells(row: Kernel, available: frozenset[str] | None) -> list[Cell]:
    here: Cell = {True: ("yes", "green"), False: ("no", "red"), None: ("?", "yellow")}[_here(row, available)]
    lanes = f"{row.lane_windows} x {row.lane_filters}"
    return [(row.name, "bold"), here, row.target, row.dtype, row.form, str(row.windows), str(row.filters), lanes]


def _document(row: Kernel, available: frozenset[str] | None) -> dict[str, object]:
    fields = ("name", "target", "dtype", "form", "windows", "filters", "lane_windows", "lane_filters")
    return {name: getattr(row, name) for name in fields} | {"available": _here(row, available)}
