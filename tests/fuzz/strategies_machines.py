# SPDX-License-Identifier: Apache-2.0
"""Machine files with entries that somebody changed, deleted, or replaced by something else."""

import copy
import math
import tomllib
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from pysim.machine.load import SHIPPED, names

Document = dict[str, Any]
Path = tuple[str | int, ...]
DOCUMENTS = {name: tomllib.loads((SHIPPED / f"{name}.toml").read_text()) for name in names()}
FACTORS = (1e-12, 1e-3, 0.1, 0.5, 2, 10, 1e3, 1e12)
VALUES = (
    0, 1, -1, 3, 64, 1 << 24, 1 << 31, 1 << 48, 1 << 63, 5e-324, 1e-300, 1e-3, 0.5, 1e6, 1e15, 1e300, math.inf, -math.inf, math.nan,
    True, "", "x" * 100_000, "turing", "fifo", [], {},
)  # fmt: skip


def paths(table: Any, before: Path = ()) -> Iterator[Path]:
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from paths(value, (*before, key))


PLACES = {name: [path for path in paths(document) if path[0] != "sources"] for name, document in DOCUMENTS.items()}


def changed(document: Document, path: Path, how: str, by: Any) -> None:
    """One change in place; none where an earlier change left nothing at the path."""
    table: Any = document
    for key in path[:-1]:
        table = table[key] if (isinstance(table, dict) and key in table) or (isinstance(table, list) and int(key) < len(table)) else {}
    key = path[-1]
    if not isinstance(table, dict) or key not in table:
        return
    if how == "delete":
        del table[key]
        return
    inside = table[key] if isinstance(table[key], dict) and "value" in table[key] else None
    where, name = (inside, "value") if inside is not None else (table, key)
    old = where[name]
    if how == "replace":
        where[name] = by[0]
    elif isinstance(old, int | float) and not isinstance(old, bool):
        where[name] = type(old)(old * by[1])


@st.composite
def documents(draw: st.DrawFn) -> Document:
    name = draw(st.sampled_from(sorted(DOCUMENTS)))
    document = copy.deepcopy(DOCUMENTS[name])
    change = st.tuples(
        st.sampled_from(PLACES[name]),
        st.sampled_from(("scale", "scale", "delete", "replace")),
        st.tuples(st.sampled_from(VALUES), st.sampled_from(FACTORS)),
    )
    for path, how, by in draw(st.lists(change, min_size=1, max_size=4)):
        changed(document, path, how, by)
    return document
