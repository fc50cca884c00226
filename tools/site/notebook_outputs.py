# SPDX-License-Identifier: Apache-2.0
"""Runs the notebooks of docs/notebooks (jupytext's Markdown): each block of Python in turn, and what Jupyter would show below it."""

import ast
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def outputs(page: str) -> Iterator[tuple[str, str]]:
    """For each block what it printed, and its last expression as HTML or text, if it has a value."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(BLOCK.findall(page), 1):
        tree = ast.parse(block)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        value = None
        with redirect_stdout(io.StringIO()) as told:
            exec(compile(tree, f"block {number}", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"block {number}", "eval"), names)
        html = getattr(value, "_repr_html_", None)
        yield told.getvalue() + (repr(value) if value is not None and html is None else ""), html() if html else ""


def with_outputs(page: str) -> str:
    """The page with the output of each block below it."""
    found = outputs(page)

    def shown(block: re.Match[str]) -> str:
        text, html = next(found)
        below = f"\n\n```text\n{text.rstrip()}\n```" if text.strip() else ""
        return block[0] + below + (f'\n\n<div class="output">{html}</div>\n' if html else "")

    return BLOCK.sub(shown, page)
