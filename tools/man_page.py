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


Block = tuple[str, ...]  # ("command", its words), ("text", a paragraph), ("lines", as they are), ("option", names  value, what it does)


def paragraphs(text: str) -> Iterator[Block]:
    """The paragraphs of a help text; one that click should not wrap (it begins with \\b) keeps its lines."""
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.lstrip().startswith("\b"):
            yield "lines", re.sub(r"(?m)^ {4}", "", part.replace("\b", "").strip("\n"))
        else:
            yield "text", " ".join(part.split())


def value(option: click.Option) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.metavar or option.type.name.upper()


def described(words: tuple[str, ...], command: click.Command) -> Iterator[Block]:
    """A command and those below it."""
    arguments = [one.metavar or one.name.upper() for one in command.params if isinstance(one, click.Argument) and one.name]
    yield "command", " ".join((*words, *arguments))
    yield from paragraphs(command.help or "")
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden:
            yield "option", f"{', '.join((*one.opts, *one.secondary_opts))}  {value(one)}".rstrip(), one.help or ""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if below := command.get_command(context, name):
                yield from described((*words, name), below)


def blocks() -> Iterator[Block]:
    """All commands."""
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield from described(("pysim", name), command)


def in_roff(block: Block) -> str:
    kind, text, *more = block
    if kind == "option":
        names, _, told = text.partition("  ")
        bold = ", ".join(f"\\fB{roff(name)}\\fR" for name in names.split(", "))
        return f".TP\n{bold}" + (f" \\fI{roff(told)}\\fR" if told else "") + f"\n{roff(more[0])}"
    return {"command": f".SS {roff(text)}", "text": f".PP\n{roff(text)}", "lines": f".PP\n.nf\n{roff(text)}\n.fi"}[kind]


def page() -> str:
    about = (main.help or "").strip().partition("\n\n")
    lines = [
        f'.TH PYSIM 1 "" "pysim {__version__}" "User Commands"\n.ad l',
        f".SH NAME\npysim \\- {roff(about[0][0].lower() + ' '.join(about[0].split()).rstrip('.')[1:])}",
        ".SH SYNOPSIS\n.B pysim\n.I COMMAND\n[\\fIoptions\\fR] \\fIPROBLEM\\fR...",
        ".SH DESCRIPTION",
        *map(in_roff, paragraphs(about[2])),
        ".SH COMMANDS",
        *map(in_roff, blocks()),
    ]
    lines.append(".SH EXIT STATUS")
    lines += [f".TP\n.B {code}\n{meaning}" for code, meaning in EXIT_CODES.items()]
    lines.append(".SH ENVIRONMENT\nPYSIM_STORE, PYSIM_LOG, PYSIM_DISABLE and others: docs/environment.md of the sources.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
