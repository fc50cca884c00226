# SPDX-License-Identifier: Apache-2.0
"""Shared by the commands: reading problems and machines, writing tables, documents and progress.

Data goes to stdout, messages to stderr. Tables are ASCII columns of fixed width, so that each row can be written as soon as it is
known. Styles are used only if stdout is a terminal. File names, node names and labels are written `printable`.
"""

import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import click
from click.shell_completion import CompletionItem

from pysim.errors import ProblemError, choose, printable, quoted
from pysim.file_io import check_writable
from pysim.record.accuracy import ACCURACIES
from pysim.registry.cuda import CONV_LAYOUTS

if TYPE_CHECKING:
    from pysim.machine.change import Value
    from pysim.problem.text import Layer, ModelFile

Command = TypeVar("Command", bound=Callable[..., Any])
Handler = Callable[..., Any]  # of a command
Row = TypeVar("Row")  # the value behind a row of a table
Cell = str | tuple[str, str]  # a text, or a text and its style on a terminal
GAP = "  "
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}  # of bytes
WIDTH = 100  # columns of wrapped prose
KIND_STYLES = {"assumed": "yellow", "measured": "green", "static": "cyan"}


class Group(click.Group):
    """A group that answers a mistyped command with the nearest one and the list, and refuses an option that is given twice."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, known = args[0], self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            ctx.fail(f'there is no command "{name}"; {choose(name, known)}')
        found = super().resolve_command(ctx, args)
        if found[1] is not None and not ctx.resilient_parsing:
            _refuse_repeats(found[1], click.Context(found[1], ctx, found[0]), found[2])
        return found


def _refuse_repeats(command: click.Command, ctx: click.Context, args: Sequence[str]) -> None:
    """UsageError if an option that takes one value is given several; click would silently take the last."""
    _, _, order = command.make_parser(ctx).parse_args(list(args))
    for option in order:
        if isinstance(option, click.Option) and not option.is_flag and not option.multiple and order.count(option) > 1:
            ctx.fail(f"{max(option.opts, key=len)} is given {order.count(option)} times; it takes one value")


# Types of options


class Choice(click.Choice[str]):
    """One of several words; an unknown word gets the same hint as any unknown name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            self.fail(f'"{value}" is not a choice; {choose(value, self.choices)}', param, ctx)
        return str(value)


class Whole(click.IntRange):
    """A whole number in ASCII digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            larger = "too large" if re.fullmatch(r"[+-]?[0-9]+", value) else "not a whole number"
            self.fail(f"{quoted(value)} is {larger}; expected e.g. {self.min}", param, ctx)
        return int(super().convert(value, param, ctx))


class Number(click.FloatRange):
    """A finite number in ASCII digits."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, str) and not (value.isascii() and "_" not in value and _is_finite(value)):
            self.fail(f'"{value}" is not a number; expected e.g. 0.2', param, ctx)
        return float(super().convert(value, param, ctx))


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class OutputFile(click.Path):
    """The path of a file to write. A file that cannot be written is refused before the command begins its work."""

    def __init__(self, *suffixes: str) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.suffixes = suffixes  # that are accepted; none: any

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if self.suffixes and path.suffix not in self.suffixes:
            self.fail(f"the name of {quoted(value)} should end in {' or '.join(self.suffixes)}", param, ctx)
        check_writable(path)
        return path


# Arguments and options of several commands


def problems(command: Command) -> Command:
    return click.argument("problems", metavar="PROBLEM...", nargs=-1, required=True, shell_complete=_complete_problem)(command)


def _complete_problem(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Built-in sets; the shell adds files."""
    from pysim.problem.text import sets

    found = [CompletionItem(name) for name in sets() if name.startswith(begun)]
    return found or [CompletionItem(begun, type="file")]


def complete_machine(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Shipped machines and those of this computer; the shell adds files."""
    from pysim.machine.load import names

    found = [CompletionItem(name) for name in ("host", "cuda", *names()) if name.startswith(begun)]
    return found or [CompletionItem(begun, type="file")]


def every(command: Command) -> Command:
    return click.option("--every", is_flag=True, help="List every occurrence of a layer instead of distinct layers with counts.")(command)


def json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)


def machine_option(command: Command) -> Command:
    text = "A name (see pysim machines), the path of a .toml file, or host: this computer."
    names = ("-m", "--machine", "machine_name")
    return click.option(*names, default="host", show_default=True, help=text, shell_complete=complete_machine)(command)


def machines_options(command: Command) -> Command:
    """Several machines, and changes of them: arguments `machine_names` and `changes`."""
    text = "A name (see pysim machines), the path of a .toml file, or host: this computer. Given several times: side by side."
    what_if = (
        "Plan for the machine with another number beside it, e.g. levels.L2.ways=16 or levels.L2.size_bytes=2MiB; several change together."
    )
    command = click.option("--set", "changes", metavar="PATH=VALUE", multiple=True, callback=settings, help=what_if)(command)
    names, how = ("-m", "--machine", "machine_names"), complete_machine
    return click.option(*names, default=("host",), show_default="host", multiple=True, help=text, shell_complete=how)(command)


def settings(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> "dict[str, Value]":
    """Callback of options PATH=VALUE: a number, bytes with a unit, true, false, or a word."""
    found: dict[str, Value] = {}
    for text in values:
        path, equals, value = (part.strip() for part in text.partition("="))
        if not path or not equals or not value:
            raise click.BadParameter(f'"{text}" is not PATH=VALUE; expected e.g. levels.L2.ways=16')
        if path in found:
            raise click.BadParameter(f"{path} is set twice")
        found[path] = setting(value)
    return found


def setting(text: str) -> "Value":
    if text in ("true", "false"):
        return text == "true"
    if (match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMG]i?B)", text)) is not None:
        return int(Fraction(match[1]) * UNITS[match[2]])
    if not _is_finite(text) or "_" in text:
        return text
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else float(text)


def layout_option(*others: str, text: str = "Layout of a convolution's input and output (GPU).") -> Callable[[Command], Command]:
    return click.option("--layout", type=Choice([*CONV_LAYOUTS, *others]), default="nchw", show_default=True, help=text)


def refuse_layout(layers: "list[Layer]", layout: str) -> None:
    """UsageError for a layout of convolutions where there are only matrix products."""
    from pysim.problem.gemm import Gemm

    if layout != CONV_LAYOUTS[0] and all(isinstance(layer.workload, Gemm) for layer in layers):
        product = f"{layers[0].workload.text} is a matrix product, whose layout is part of its name, e.g. gemm:64x64x64:nt"
        raise click.UsageError(f"--layout {layout} is for convolutions; {product}")


def memory_limit_option(command: Command) -> Command:
    text = "Most workspace that a plan may need, e.g. 0 or 64MiB."
    return click.option("--memory-limit", metavar="BYTES", callback=byte_count, help=text)(command)


def accuracy_options(command: Command) -> Command:
    levels = "standard: any plan; strict: no plan with a stated error above a direct sum's; ieee: no transformed or split operands; "
    levels += "reproducible: the same bits on any CPU, for any batch and threads, or on one type of GPU for any batch."
    limit = "Largest stated error of a plan (maximum error over the result's root mean square), e.g. 1e-5."
    command = click.option("--error-limit", type=Number(min=0), metavar="E", help=limit)(command)
    return click.option("--accuracy", type=Choice(list(ACCURACIES)), default=ACCURACIES[0], show_default=True, help=levels)(command)


def plan_options(*decorators: Callable[[Handler], Handler]) -> Callable[[Handler], Handler]:
    """Passes the values of these options to the command as one dictionary, `options`, with the argument names of `pysim.planner.plan`."""

    def decorate(command: Handler) -> Handler:
        @functools.wraps(command)
        def gathering(*args: Any, **values: Any) -> Any:
            return command(*args, options={name: values.pop(name) for name in names}, **values)

        before = len(_parameters(gathering))
        for decorator in reversed(decorators):
            decorator(gathering)
        names = [str(parameter.name) for parameter in _parameters(gathering)[before:]]
        return gathering

    return decorate


def _parameters(function: Callable[..., Any]) -> list[click.Parameter]:
    return list(getattr(function, "__click_params__", ()))


def byte_count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Callback of an option in bytes: 0, 268435456, 64MiB, 1.5GiB, 2GB."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?) ?(\w*)", "0" if value is None else value.strip(), re.ASCII)
    if not match or match[2] not in UNITS:
        raise click.BadParameter(f'"{value}" is not a number of bytes; expected e.g. 0, 268435456, 64MiB or 1.5GiB')
    return None if value is None else int(Fraction(match[1]) * UNITS[match[2]])


# Problems and machines


def layers_of(words: Sequence[str], keep_every: bool = False) -> "list[Layer]":
    """The layers that the words name, by default distinct ones with counts; nodes that a model's reader skipped are named on stderr."""
    from pysim.machine.load import names
    from pysim.problem.text import distinct, resolve

    if machine := next((word for word in words if word in (*names(), "host", "cuda")), None):
        raise click.UsageError(f"{machine} is a machine, not a problem; write -m {machine}")
    layers = resolve(words, read_model)
    if not layers:
        raise ProblemError(f"{', '.join(words)}: no convolution and no matrix product was found that can be read")
    return layers if keep_every else distinct(layers)


def read_model(model: "ModelFile") -> "list[Layer]":
    from pysim.onnx.layers import read

    layers, skipped = read(*model)
    for node in skipped:
        text = node.reason if node.reason.startswith("not skipped: ") else f"skipped: {node.reason}"
        say(f'{model.path}: {node.op} "{node.node}": {text.removeprefix("not skipped: ")}')
    return layers


# Writing


def say(text: str) -> None:
    """Writes a message to stderr."""
    click.echo(printable(text), err=True)


def put(*cells: Cell) -> None:
    """Writes one line of data: the cells, joined."""
    if not sys.stdout.isatty():
        click.echo("".join(_text(cell) for cell in cells).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text.assemble(*((_text(cell), _style(cell)) for cell in cells)))


def put_lines(text: str) -> None:
    """Writes data of several lines, without styles."""
    for line in text.split("\n"):
        put(line)


def document(**fields: Any) -> None:
    """Writes the JSON document of a command, in ASCII."""
    import msgspec

    plain = _encodable(msgspec.to_builtins({"schema": 1, **fields}, str_keys=True))
    text = msgspec.json.format(msgspec.json.encode(plain), indent=1).decode()
    click.echo(re.sub(r"[^\x00-\x7e]", lambda found: json.dumps(found[0])[1:-1], text))


def _encodable(value: Any) -> Any:
    """The value with every string made valid UTF-8; file names need not be."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def wrapped(text: str, indent: str) -> str:
    """Prose in lines of at most WIDTH characters; lines after the first are indented two more. A long URL is not broken."""
    return fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False)


class Column(NamedTuple, Generic[Row]):
    """A column of a table: title, the cell of a row, alignment (numbers to the right). `width` is a minimum, for rows that are written
    before the widest is known."""

    title: str
    cell: Callable[[Row], Cell]
    left: bool = False
    width: int = 0


def put_header(columns: Sequence[Column[Row]]) -> None:
    _put_cells(columns, [(column.title, "bold") for column in columns])


def put_row(columns: Sequence[Column[Row]], row: Row) -> None:
    _put_cells(columns, [column.cell(row) for column in columns])


def put_table(columns: Sequence[Column[Row]], rows: Iterable[Row]) -> None:
    """Writes titles and rows; each column is as wide as its widest cell."""
    cells = [[column.cell(row) for column in columns] for row in rows]
    widths = [max(len(_text(cell)) for cell in (column.title, *below)) for column, *below in zip(columns, *cells, strict=True)]
    fitted = [column._replace(width=width) for column, width in zip(columns, widths, strict=True)]
    put_header(fitted)
    for row in cells:
        _put_cells(fitted, row)


def _put_cells(columns: Sequence[Column[Row]], cells: Sequence[Cell]) -> None:
    """Writes one row. The last column is not padded."""
    pieces: list[Cell] = []
    for index, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        text, style = _text(cell), _style(cell)
        last = index == len(columns) - 1
        space = " " * (max(column.width, len(column.title)) - len(text))
        pieces += [GAP * bool(index), "" if column.left else space, (text, style), space if column.left and not last else ""]
    put(*pieces)


def _text(cell: Cell) -> str:
    return printable(cell if isinstance(cell, str) else cell[0])


def _style(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[1]


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a line on stderr if that is a terminal, and clears it for "". It starts no thread."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)

    def show(text: str) -> None:
        live.update(text)
        if text:
            live.start(refresh=True)
        else:
            live.stop()

    try:
        yield show
    finally:
        live.stop()


# Short forms of quantities


def quantity(value: Any) -> str:
    """A number of a machine file: 3,600,000,000, 0.8."""
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def seconds(value: float | None) -> str:
    """Three digits and a unit: 2.17 ms."""
    return "-" if value is None else _scaled(value, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))


def size(value: float) -> str:
    """32 KiB, 1 MiB, 97.5 KiB."""
    unit, scale = next(((u, s) for u, s in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)) if value >= s), ("B", 1))
    return f"{value / scale:.4g} {unit}"


def error(value: float | None) -> str:
    """1.1e-05."""
    return "-" if value is None else f"{value:.1e}"


def kind_cell(kind: str) -> Cell:
    """The kind of a machine's number, coloured."""
    return kind, KIND_STYLES.get(kind, "")


def hertz(value: float) -> str:
    return f"{value / 1e9:.2f} GHz"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    unit, scale = next(((u, s) for u, s in units if value >= s * 0.9995), units[-1])
    number = value / scale
    return f"{number:.{2 if number < 9.995 else 1 if number < 99.95 else 0}f} {unit}"
