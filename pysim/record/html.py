# SPDX-License-Identifier: Apache-2.0
"""What notebooks show of a value (`_repr_html_`): a caption, a small table and a folded text, in the notebook's own colours."""

from collections.abc import Iterable, Sequence
from html import escape

from pysim.errors import printable

_LINE = "border-bottom:1px solid rgba(128,128,128,.4);padding:.2em .7em;white-space:nowrap"


def table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], more: str = "", left: int = 1) -> str:
    """The first `left` columns are text, the others numbers. `more`: shown when it is unfolded."""

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ("left" if at < left else "right" for at in range(len(cells)))
        return "".join(f'<{tag} style="{_LINE};text-align:{side}">{_text(cell)}</{tag}>' for cell, side in zip(cells, sides, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    whole = f'<table style="border-collapse:collapse"><thead><tr>{line(heads, "th")}</tr></thead><tbody>{body}</tbody></table>'
    folded = f"<details><summary>more</summary><pre>{escape(more)}</pre></details>" if more else ""
    return f"<div><p><b>{_text(caption)}</b></p>{whole}{folded}</div>"


def _text(text: str) -> str:
    return escape(printable(text))
