# SPDX-License-Identifier: Apache-2.0
"""The import rule, per file: a module imports only what stands before it, so that the model works with no compiler, GPU or native library;
and an algorithm is known by name in its own module and in the registry alone."""

import ast
import re
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest
from checkout import PACKAGE, ROOT

# Each part imports only the parts before it; within a part modules may import one another, but not in circles.
ORDER = (
    *("errors", "logs", "file_io", "caches", "arguments", "problem", "registry", "machine", "record", "cachemodel"),
    *("algorithms", "planner", "runtime", "check", "measure", "peers", "explain", "comparison", "calibration", "tuning"),
    *("standalone", "network", "onnx", "torch"),
    *("api", "convolutions", "__init__", "sweep", "report", "commands", "cli", "__main__"),
)
LATER = {  # importer -> imported, where a higher part is needed at run time only
    "pysim.cachemodel.equations": {"pysim.runtime.cpu"},  # evaluates natively
    "pysim.cachemodel.simulator.hierarchy": {"pysim.runtime.cpu"},  # simulates natively
    "pysim.cachemodel.simulator.trace": {"pysim.runtime.cpu"},
}
MOST_ROOT_MODULES = 10
MOST_LINES, MOST_FUNCTION_LINES, MOST_FILES = 500, 60, 16
SOURCES = sorted(
    path.relative_to(ROOT)
    for folder in ("pysim", "tests", "tools", "lab", "native")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".c", ".h", ".cu", ".cuh", ".inc")
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


FILES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, inside functions and for types too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "pysim"}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}, line {node.lineno}: a relative import; write from pysim. ..."
            if str(node.module).split(".")[0] == "pysim":
                of = (f"{node.module}.{alias.name}" for alias in node.names)
                found |= {one if one in FILES else str(node.module) for one in of}
    return {"pysim.__init__" if one == "pysim" else one for one in found}


IMPORTS = {name: imported(path) - {name} for name, path in FILES.items()}


def place(module: str) -> int:
    return ORDER.index(module.split(".")[1])


def test_every_module_has_a_place_and_few_lie_in_the_root():
    assert {name.split(".")[1] for name in FILES} == set(ORDER)
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_ROOT_MODULES


@pytest.mark.parametrize("module", sorted(FILES))
def test_a_module_imports_only_what_stands_before_it(module: str) -> None:
    upward = {used for used in IMPORTS[module] if place(used) > place(module)}
    assert upward <= LATER.get(module, set())


def test_every_exception_is_used():
    assert all(used <= IMPORTS[user] for user, used in LATER.items())


def test_frontends_of_networks_know_nothing_of_each_other():
    for one, other in (("onnx", "torch"), ("torch", "onnx")):
        users = {
            name
            for name, used in IMPORTS.items()
            if name.startswith(f"pysim.{one}") and any(use.startswith(f"pysim.{other}") for use in used)
        }
        assert not users


def test_no_modules_import_one_another_in_a_circle():
    down = {user: {used for used in uses if used not in LATER.get(user, set())} for user, uses in IMPORTS.items()}
    assert not list(nx.simple_cycles(nx.DiGraph(down)))


def test_no_native_files_include_one_another_in_a_circle() -> None:
    native, graph = ROOT / "native", nx.DiGraph()
    for path in (ROOT / source for source in SOURCES if source.parts[0] == "native"):
        for name in re.findall(r'^\s*#\s*include "(.*)"', path.read_text(), re.MULTILINE):
            places = (folder / name for folder in (path.parent, native / "cuda", native / "cuda/emulated", native))
            graph.add_edge(path, next(place for place in places if place.exists()).resolve())
    assert graph.number_of_edges() > 400
    assert not list(nx.simple_cycles(graph))


def test_source_files_lie_in_folders_that_are_read_at_a_glance() -> None:
    sources = (path for path in SOURCES if path.parts[0] in ("pysim", "native", "tools"))
    assert not {folder: count for folder, count in Counter(path.parent for path in sources).items() if count > MOST_FILES}


def algorithm_names() -> set[str]:
    """Names of algorithms, and of the rows' families and variants, as the registry has them."""
    modules = {path.stem for path in (PACKAGE / "algorithms").glob("[cg]pu/**/*.py")}
    modules -= {"__init__", "gemm"}  # which is a kind of problem, too
    return modules | {"simt", "wmma", "mma", "fused", "staged"}


@pytest.mark.parametrize("module", sorted(name for name in FILES if not name.startswith(("pysim.algorithms.", "pysim.registry."))))
def test_nothing_compares_an_algorithms_name(module: str) -> None:
    """`one == "winograd"`, `"sconv" in names`, and a mapping by such names are what a new algorithm would have to be added to."""
    names = algorithm_names()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Compare):
            texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
            assert not texts & names, f"{module}, line {node.lineno}: {texts & names}"
        if isinstance(node, ast.Dict):
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            assert len(keys & names) < 2, f"{module}, line {node.lineno}: {keys & names}"


def test_a_file_is_read_in_one_sitting_and_a_function_on_one_screen() -> None:
    for path in SOURCES:
        text = (ROOT / path).read_text()
        assert text.count("\n") <= MOST_LINES, path
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < MOST_FUNCTION_LINES, f"{path}: {node.name}"


def test_tests_lie_in_a_tree_whose_folders_are_read_at_a_glance() -> None:
    folders = [folder for folder in (ROOT / "tests").rglob("*") if folder.is_dir() and folder.name != "__pycache__"]
    for folder in folders:
        assert sum(file.is_file() for file in folder.iterdir()) <= MOST_FILES, folder
    unit = ROOT / "tests" / "unit"
    rooms = [folder.relative_to(unit) for folder in folders if unit in folder.parents and folder != unit / "api"]
    assert rooms and all((PACKAGE / room).is_dir() for room in rooms)
    assert not [*unit.glob("*.py"), *(ROOT / "tests").glob("test_*.py")], "a test lies in the folder of what it is about"


def test_the_design_page_has_the_same_order():
    text = (ROOT / "docs" / "design.md").read_text()
    listed = re.search(r"`errors [a-z0-9_ `\n]*`", text)
    assert listed and listed.group(0).replace("`", "").split() == [one for one in ORDER if not one.startswith("__")]
