# SPDX-License-Identifier: Apache-2.0
"""What mkdocs adds to the pages of docs/: the notebook of what was tried and the changelog, the generated reference, outputs of notebooks.

In a checkout a link may lead to any file; here those to pages are adapted, and of those to other files the text is left.
"""

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import man_page  # noqa: E402
import notebook_outputs  # noqa: E402

from pysim.machine import cpu, gpu, quantity  # noqa: E402

SCHEMA = ROOT / "docs" / "documents.schema.json"
NAMED = {"seconds": "seconds", "secondsOrNull": "seconds or null", "numberOrNull": "number or null"}
ELSEWHERE = {f"tried/{path.name}": path for path in (ROOT / "lab" / "notebook").glob("*.md")}
ELSEWHERE |= {name: ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
PLACES = {str(path.relative_to(ROOT)): uri for uri, path in ELSEWHERE.items()}  # path in a checkout -> place on the site
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    for uri, path in ELSEWHERE.items():
        files.append(File.generated(config, uri, content=path.read_text()))
    for uri, made in {"commands": commands, "machine-files": machine_files, "documents": documents}.items():
        files.append(File.generated(config, f"reference/{uri}.md", content=made()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    uri = page.file.src_uri
    here = str(ELSEWHERE[uri].relative_to(ROOT)) if uri in ELSEWHERE else f"docs/{uri}"
    if uri == "api.md":
        markdown = with_docstrings(markdown)
    if uri.startswith("notebooks/"):
        try:
            markdown = notebook_outputs.with_outputs(markdown)
        except ImportError as error:
            print(f"{uri} has no outputs: {error}")

    def moved(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        place = PLACES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if place is None or files.get_file_from_path(place) is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


# Generated pages


def commands() -> str:
    """The help of every command."""
    parts = [f"# Every option\n\n| exit code | meaning |\n|---|---|\n{codes()}\n"]
    for kind, text, *more in man_page.blocks():
        if kind == "option":
            names, value = text.split("  ") if "  " in text else (text, "")
            parts.append(f"`{names}`" + (f" *{escape(value)}*" if value else "") + f"\n:   {escape(more[0])}\n")
        else:
            parts.append({"command": f"## {text}\n", "text": f"{escape(text)}\n", "lines": f"```text\n{text}\n```\n"}[kind])
    return "\n".join(parts)


def codes() -> str:
    return "\n".join(f"| {code} | {meaning} |" for code, meaning in man_page.EXIT_CODES.items())


def with_docstrings(markdown: str) -> str:
    """The page of Python with each function's signature and docstring by mkdocstrings."""
    head, begin, rest = markdown.partition("<!-- api: begin")
    headings = re.findall(r"^(##|###) (pysim\S*)$", rest, re.MULTILINE)
    made = [f"## {name}" if level == "##" else f"::: {found(name)}\n    options:\n      heading: {name}" for level, name in headings]
    return f"{head}\n" + "\n\n".join(made) + "\n" if begin else markdown


def found(name: str) -> str:
    """The module in which a public name is defined: names of packages are imported when they are first used."""
    value: Any = sys.modules.get("pysim") or __import__("pysim")
    for part in name.split(".")[1:]:
        value = __import__(f"pysim.{part}", fromlist=["_"]) if part == "cachemodel" else getattr(value, part)
    return f"{value.__module__}.{value.__qualname__}"


def machine_files() -> str:
    """Every field of a machine file, from the types that read it."""
    parts = [
        "# Machine files\n\nA machine is a TOML file; [machines](../machines.md#a-file-of-your-own) says how to write one, and "
        "`pysim machines show zen4 --toml` writes one to begin with. These are all fields, from the types that read them. "
        "A *number* is a table `{ value, kind, source, error }`; its unit is the end of the field's name.\n"
    ]
    for title, first in (("A CPU's file", cpu.Machine), ("A GPU's file", gpu.Gpu)):
        parts.append(f"## {title}\n")
        for struct in reached(first):
            parts.append(f"### {struct.__name__} {{ #{anchor(struct)} }}\n\n{described(struct)}\n")
            parts.append("| field | value | needed |\n|---|---|---|")
            fields = [one for one in msgspec.structs.fields(struct) if one.encode_name != "starts_cold"]  # which no file has
            parts += [f"| `{one.encode_name}` | {type_name(one.type)} | {'yes' if one.required else ''} |" for one in fields]
            parts.append("")
    ranges = "\n".join(f"| `{suffix}` | {low:g} | {high:g} |" for suffix, (low, high) in quantity._RANGES.items())
    parts.append("## Permitted ranges\n\nBy the end of a field's name; the longest that fits applies.\n")
    parts.append(f"| end | from | to |\n|---|--:|--:|\n{ranges}\n")
    return "\n".join(parts)


def anchor(struct: Any) -> str:
    return f"{struct.__module__.rpartition('.')[2]}-{struct.__name__.lower()}"


def described(struct: Any) -> str:
    return (struct.__doc__ or "").replace("\n    ", "\n")


def reached(struct: Any) -> list[Any]:
    """The type and all types of its fields, outermost first."""
    seen = [struct]
    for one in seen:
        for field in msgspec.structs.fields(one):
            for part in structs_in(field.type):
                if part not in seen and part is not quantity.Number:
                    seen.append(part)
    return seen


def structs_in(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for part in getattr(kind, "__args__", ()):
        yield from structs_in(part)
    if hasattr(kind, "__metadata__"):
        yield from structs_in(kind.__origin__)


def type_name(kind: Any) -> str:
    if kind is quantity.Number:
        return "number"
    if hasattr(kind, "__metadata__"):
        return type_name(kind.__origin__)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{anchor(kind)})"
    parts = [one for one in getattr(kind, "__args__", ()) if one not in (type(None), ...)]
    origin = str(getattr(kind, "__origin__", ""))
    if "tuple" in origin or "list" in origin:
        return f"list of {type_name(parts[0])}"
    if "dict" in origin:
        return f"{type_name(parts[1])} by name"
    if "Literal" in origin:
        return ", ".join(f"`{one}`" for one in parts)
    if parts:
        return " or ".join(map(type_name, parts))
    plain = {"str": "text", "int": "whole number", "float": "decimal number", "bool": "true or false"}
    return plain.get(getattr(kind, "__name__", ""), str(kind))


def documents() -> str:
    """The JSON schema as tables."""
    schema = json.loads(SCHEMA.read_text())
    parts = [
        "# JSON documents\n\nWith `--json` a command writes one document that follows [documents.schema.json](../documents.schema.json). "
        "Times are in seconds, sizes in bytes.\n"
    ]
    for name, one in {"A document": schema, **schema["$defs"]}.items():
        if "properties" not in one:
            continue
        head = "| field | value | always there | meaning |\n|---|---|---|---|"
        parts.append(f"## {name}\n\n{one.get('description', '')}\n\n{head}")
        needed = one.get("required", ())
        for field, value in one["properties"].items():
            parts.append(f"| `{field}` | {kind_of(value)} | {'yes' if field in needed else ''} | {value.get('description', '')} |")
        parts.append("")
    return "\n".join(parts)


def kind_of(value: Any) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return NAMED.get(name) or f"[{name}](#{name.lower()})"
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    for union in ("anyOf", "oneOf"):
        if union in value:
            return " or ".join(map(kind_of, value[union]))
    kinds = value.get("type", "any")
    kind = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    items = value.get("items") or value.get("additionalProperties")
    return f"{kind} of {kind_of(items)}" if isinstance(items, dict) and items else kind
