# SPDX-License-Identifier: Apache-2.0
"""The part of JSON Schema (draft 2020-12) that docs/documents.schema.json uses."""

from collections.abc import Iterator
from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None),
}  # fmt: skip
KEYWORDS = {"type", "required", "properties", "additionalProperties", "minProperties", "items", "anyOf", "enum", "const", "minimum", "$ref"}
COMMENTS = {"$schema", "$defs", "title", "description"}


def errors(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> Iterator[str]:
    """What is wrong with a value, each with its path."""
    assert schema.keys() <= KEYWORDS | COMMENTS, f"a keyword that is not known here: {schema.keys() - KEYWORDS - COMMENTS}"
    if "$ref" in schema:
        yield from errors(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, at)
    if "const" in schema and value != schema["const"]:
        yield f"{at} is {value!r}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value!r}, none of {schema['enum']}"
    if "type" in schema and not _is_of(value, schema["type"]):
        yield f"{at} is {value!r}, not of type {schema['type']}"
        return
    if "minimum" in schema and value is not None and value < schema["minimum"]:
        yield f"{at} is {value}, below {schema['minimum']}"
    if "anyOf" in schema:
        found = [list(errors(value, one, root, at)) for one in schema["anyOf"]]
        if all(found):
            yield from min(found, key=len)
    if isinstance(value, dict):
        yield from _of_object(value, schema, root, at)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from errors(item, schema["items"], root, f"{at}[{number}]")


def _of_object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{at} has no {name}"
    if len(value) < schema.get("minProperties", 0):
        yield f"{at} has {len(value)} fields"
    known, other = schema.get("properties", {}), schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            yield from errors(item, known[name], root, f"{at}.{name}")
        elif other is False:
            yield f"{at} has a field {name}, which is not known"
        elif other is not True:
            yield from errors(item, other, root, f"{at}.{name}")


def _is_of(value: Any, types: str | list[str]) -> bool:
    """Whether a value is of a type, or of one of several; a boolean is not a number."""
    names = [types] if isinstance(types, str) else types
    return any(isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool)) for name in names)
