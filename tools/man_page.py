# SPDX-License-Identifier: Apache-2.0
"""Writes docs/pysim.1, the manual page, from the command line's own help: python tools/man_page.py. A test holds the file to it."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from pysim import __version__
from pysim.cli import COMMANDS, main

PAGE = Path(__file__).parents[1] / "docs" / "pysim.1"
EXIT_CODES = {"0": "done", "1": "a check failed", "2": "bad usage, or nothing matched", "3": "hardware or a package is missing"}


def roff(text: str) -> str:
    """Text as roff prints it."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(['.])", r"\\&\1", escaped, flags=re.MULTILINE)


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; one that click should not wrap (it begins with \\b) keeps its lines."""
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.lstrip().startswith("\b"):
            lines = part.replace("\b", "").strip("\n")
            yield f".PP\n.nf\n{roff(re.sub(r'(?m)^ {4}', '', lines))}\n.fi"
        else:
            yield f".PP\n{roff(' '.join(part.split()))}"


def value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.metavar or option.type.name.upper()


def options(command: click.Command) -> Iterator[str]:
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            names = ", ".join(f"\\fB{roff(name)}\\fR" for name in (*one.opts, *one.secondary_opts))
            yield f".TP\n{names} \\fI{roff(value(one))}\\fR".rstrip().removesuffix(" \\fI\\fR") + f"\n{roff(one.help or '')}"


def commands(words: tuple[str, ...], command: click.Command) -> Iterator[str]:
    """A command and those below it."""
    arguments = " ".join(one.metavar or one.name.upper() for one in command.params if isinstance(one, click.Argument) and one.name)
    yield f".SS {roff(' '.join(words))} {roff(arguments)}".rstrip()
    yield from paragraphs(command.help or "")
    yield from options(command)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if below := command.get_command(context, name):
                yield from commands((*words, name), below)


def page() -> str:
    context = click.Context(main)
    about = (main.help or "").strip().partition("\n\n")
    lines = [
        f'.TH PYSIM 1 "" "pysim {__version__}" "User Commands"\n.ad l',
        f".SH NAME\npysim \\- {roff(about[0][0].lower() + ' '.join(about[0].split()).rstrip('.')[1:])}",
        ".SH SYNOPSIS\n.B pysim\n.I COMMAND\n[\\fIoptions\\fR] \\fIPROBLEM\\fR...",
        ".SH DESCRIPTION",
        *paragraphs(about[2]),
        ".SH COMMANDS",
    ]
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        lines += commands(("pysim", name), command)
    lines.append(".SH EXIT STATUS")
    lines += [f".TP\n.B {code}\n{meaning}" for code, meaning in EXIT_CODES.items()]
    lines.append(".SH ENVIRONMENT\nPYSIM_STORE, PYSIM_LOG, PYSIM_DISABLE and others: docs/environment.md of the sources.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
