# SPDX-License-Identifier: Apache-2.0
"""`pysim completion`: what a shell needs to complete commands, options, machines and built-in sets. click makes it."""

import click
from click.shell_completion import get_completion_class

from pysim.commands.common import Choice, put_lines

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Write the script with which a shell completes pysim's commands, options, machines and sets of problems.

    \b
    Examples
      pysim completion bash >> ~/.bashrc
      pysim completion zsh >> ~/.zshrc
      pysim completion fish > ~/.config/fish/completions/pysim.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    put_lines(made(ctx.find_root().command, {}, "pysim", "_PYSIM_COMPLETE").source().strip("\n"))
