# SPDX-License-Identifier: Apache-2.0
"""The command `pysim`: a table of commands, each loaded when it is used, and the one place where an error becomes an exit code.

    0  done
    1  a check failed
    2  bad usage, nothing matched, or stdout cannot be written
    3  hardware or a package is missing

130 and 141 are what a shell expects after Ctrl-C and after the reader of a pipe closed it (`pysim kernels | head -1`).
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import click

from pysim import __version__
from pysim.commands.common import Group, say
from pysim.errors import PysimError, printable

INTERRUPTED, BROKEN_PIPE = 130, 141
NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2; its message is the help text

# Name -> what it does. The command is the object of that name in pysim/commands/<name>.py.
COMMANDS = {
    "plan": "Choose a schedule for any machine, predict its time, and explain it.",
    "run": "Plan, check the result, and time it on this computer.",
    "compare": "Predicted and measured times beside other libraries, layer by layer.",
    "report": "Plans and measurements as one page to show.",
    "export": "A plan as C or CUDA that needs neither pysim nor Python, with its test and benchmark.",
    "history": "Measurements of other days beside one another, or beside a baseline.",
    "search": "Find the best plan by measurement within a time budget; rate the model's choice.",
    "sweep": "Many problems, machines and options from a file; resumable, on many workers.",
    "cache": "Misses of each cache level, predicted and exactly simulated.",
    "banks": "Count the shared-memory wavefronts of a layout, and find a better layout.",
    "machines": "List the machines to plan for, with the source of every number.",
    "kernels": "List the micro-kernels and which of them this computer can run.",
    "doctor": "Show what is installed, what is missing, and how to install it.",
    "completion": "Let a shell complete commands, options, machines and sets.",
}


@contextmanager
def _sentences() -> Iterator[None]:
    """Turns every error into one line on stderr and an exit code."""
    try:
        yield
    except NO_ARGUMENTS:
        raise
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # click has no other way
        raise
    except PysimError as error:
        say(f"pysim: {error}")
        raise click.exceptions.Exit(error.exit_code) from None
    except MemoryError as error:
        say(f"pysim: out of memory{f': {error}' if str(error) else ''}")
        raise click.exceptions.Exit(PysimError.exit_code) from None
    except KeyboardInterrupt:
        say("pysim: interrupted")
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _drop_stdout()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except OSError as error:  # a failed write to a stream has no file name
        _drop_stdout()
        say(f"pysim: {error.filename or 'the output'}: {error.strerror or error}")
        raise click.exceptions.Exit(PysimError.exit_code) from None


def _drop_stdout() -> None:
    """Discards buffered output, so that the interpreter's last flush does not fail as well."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Commands(Group):
    """A group that imports a command's file only when that command is named, and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"pysim.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, *args: Any, **options: Any) -> Any:
        """click's `main`, after making sure that stdout and stderr can be written in any encoding."""
        if sys.stderr is None:  # closed: the next file to be opened would get its descriptor
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        if sys.stdout is None:
            say("pysim: stdout is closed; to discard the output, use > /dev/null")
            sys.exit(PysimError.exit_code)
        if isinstance(sys.stdout, io.TextIOWrapper) and isinstance(raw := sys.stdout.buffer, io.RawIOBase):
            # PYTHONUNBUFFERED: without a buffer, Python loses the rest of a short write, on a full disk, without an error
            sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), sys.stdout.encoding, line_buffering=True)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with _sentences():  # --help and --version write here
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _sentences():
            return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="pysim %(version)s")
def main() -> None:
    """Plan convolutions and matrix products with a model of the machine, explain the plans, and run exactly those plans.

    \b
    A PROBLEM is
      conv:mb1ic64ih56oc64kh3ph1    a convolution (benchdnn's grammar; without iw or kw the width copies the height)
      gemm:512x2048x1024:nt:f64     a matrix product M x N x K; layout and type default to :nn:f32
      resnet50                      a built-in set of layers; resnet50:mb32:f16 has another batch and type
      @layers.txt                   a file with one problem per line
      model.onnx                    every Conv, Gemm and MatMul of a model

    \b
    Examples
      pysim plan resnet50 -m zen4
      pysim compare conv:mb1ic64ih56oc64kh3ph1 --peers
    """
