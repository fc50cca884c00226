# SPDX-License-Identifier: Apache-2.0
"""The data files of `lab/data`: JSON lines, of which those of one form are tables without the names of their columns.

A line is an object, or an array that the file's first line explains under "table", its columns by name. Each has a form, which is

    null                              the value as it stands
    {"words": [...]}                  a place in this list
    {"record": columns}               an array of values: an object
    {"records": columns}              a list of such arrays: a list of objects
    {"records": columns, "by": NAME}  the same as an object, each under its value of NAME, which is not repeated in it

A value that is null, or lies beyond the end of its array, was not there. Example: after
{"kind": "header", "table": {"problem": null, "plan": {"words": ["a", "b"]}}} the line ["gemm:1x2x3", 1] is
{"problem": "gemm:1x2x3", "plan": "b"}.

    python lab/records.py FILE...          prints the lines as they were before
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DIGITS = 6  # of numbers that are not integers


def lines(path: Path) -> list[dict[str, Any]]:
    """A file's records in full, its header first if it has one."""
    text = path.read_text(encoding="utf-8").splitlines()
    return [*expanded(json.loads(line) for line in text if line.strip())]


def header(path: Path) -> dict[str, Any]:
    """The first record of a file that has a header."""
    with path.open(encoding="utf-8") as file:
        first: dict[str, Any] = json.loads(file.readline())
    return {name: value for name, value in first.items() if name != "table"}


def expanded(values: Iterable[Any]) -> Iterable[dict[str, Any]]:
    """Lines as they stand in a file, each in full."""
    table: dict[str, Any] = {}
    for value in values:
        if isinstance(value, dict):
            table = value.get("table", table)
            if value.keys() != {"table"}:
                yield {name: one for name, one in value.items() if name != "table"}
        else:
            yield record(table, value)


def record(columns: dict[str, Any], row: list[Any]) -> dict[str, Any]:
    return {name: full(form, value) for (name, form), value in zip(columns.items(), row, strict=False) if value is not None}


def full(form: dict[str, Any] | None, value: Any) -> Any:
    """A value of one column, in full."""
    if form is None:
        return value
    if "words" in form:
        return form["words"][value]
    if "record" in form:
        return record(form["record"], value)
    found = [record(form["records"], row) for row in value]
    return {one.pop(form["by"]): one for one in found} if "by" in form else found


def packed(header: dict[str, Any], records: list[dict[str, Any]], by: dict[str, str] | None = None) -> str:
    """The text of a file of these records; `by`: columns whose objects have one form, and the name of their keys."""
    columns, rows = table_of([rounded(one) for one in records], by or {})
    return "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in (header | {"table": columns}, *rows))


def table_of(records: list[dict[str, Any]], by: dict[str, str]) -> tuple[dict[str, Any], list[list[Any]]]:
    columns: dict[str, Any] = {}
    cells: list[list[Any]] = []
    there = Counter(name for one in records for name, value in one.items() if value is not None)
    for name, _ in there.most_common():  # what few records have comes last
        columns[name], values = column([one.get(name) for one in records], by, by.get(name))
        cells.append(values)
    return columns, [trimmed(list(row)) for row in zip(*cells, strict=True)] if cells else [[] for _ in records]


def trimmed(row: list[Any]) -> list[Any]:
    while row and row[-1] is None:
        row.pop()
    return row


def column(values: list[Any], by: dict[str, str], key: str | None) -> tuple[Any, list[Any]]:
    """The form of a column, and its values in it."""
    there = [one for one in values if one is not None]
    if key and all(isinstance(one, dict) for one in there):
        values = [None if one is None else [{key: name, **of} for name, of in one.items()] for one in values]
    if (objects := [one for one in values if one is not None]) and all(isinstance(one, dict) for one in objects):
        columns, rows = table_of(objects, by)
        left = iter(rows)
        return {"record": columns}, [None if one is None else next(left) for one in values]
    if objects and all(isinstance(one, list) and one and all(isinstance(of, dict) for of in one) for one in objects):
        columns, rows = table_of([of for one in objects for of in one], by)
        left = iter(rows)
        return {"records": columns} | ({"by": key} if key else {}), [None if one is None else [next(left) for _ in one] for one in values]
    if objects and all(isinstance(one, str) for one in objects) and len(words := list(dict.fromkeys(objects))) < 0.7 * len(objects):
        places = {word: place for place, word in enumerate(words)}
        return {"words": words}, [None if one is None else places[one] for one in values]
    return None, values


def rounded(value: Any) -> Any:
    """With numbers of six digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        for one in lines(Path(argument)):
            print(json.dumps(one))
