# SPDX-License-Identifier: Apache-2.0
"""Docstrings as Markdown: paragraphs that are set in columns or indented stay as they are."""

import re
from typing import Any

import griffe

COLUMNS = re.compile(r"^\S.*\S {2,}\S|^ {2,}\S", re.MULTILINE)


def as_markdown(text: str) -> str:
    """Two spaces inside a line, or an indented line, mark a paragraph as a table."""
    return "\n\n".join(f"```text\n{part}\n```" if COLUMNS.search(part) else part for part in re.split(r"\n\s*\n", text))


class Columns(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
