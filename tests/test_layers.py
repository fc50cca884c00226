# SPDX-License-Identifier: Apache-2.0
"""The import rule: a module imports only what lies below it, so that the model works with no compiler, GPU or native library."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "pysim"
LAYERS = (
    "errors once registry workload schedule machine record",
    "cachemodel arguments arrays cuda_fill",
    "runtime emulated cuda planner",
    "measure verify store peers comparison cuda_peers cuda_bench cuda_rivals cuda_comparison cuda_conv cuda_probe cudnn host",
    "frontends commands cli api __init__ __main__",
)
LAYER = {name: layer for layer, names in enumerate(LAYERS) for name in names.split()}
EXCEPTIONS = {  # importer -> imported, of the same layer or above, and why
    ("machine", "errors"): "errors has no imports itself",
    ("workload", "errors"): "errors has no imports itself",
    ("cachemodel", "runtime"): "hierarchy simulates natively; imported when a simulation starts",
    ("emulated", "runtime"): "it stands in for its library",
    ("planner", "runtime"): "Plan.run; imported when a plan runs",
    ("planner", "emulated"): "Plan.run; imported when a plan runs",
    ("planner", "cuda"): "Plan.run; imported when a plan runs",
    ("planner", "cuda_conv"): "Plan.run; imported when a plan runs",
    ("verify", "measure"): "a verdict is made of its checks",
    ("peers", "measure"): "a peer's output starts as NaN, as measure has it",
    ("peers", "verify"): "a peer is fed the shapes that verify checks",
    ("comparison", "measure"): "a comparison is made of these",
    ("comparison", "verify"): "a comparison is made of these",
    ("comparison", "peers"): "a comparison is made of these",
    ("comparison", "store"): "a comparison is made of these",
    **{
        ("cuda_comparison", used): "a comparison is made of these"
        for used in ("comparison", "cuda_bench", "cuda_peers", "cuda_rivals", "measure", "store")
    },
    ("cuda_bench", "cuda_conv"): "what is checked",
    ("cuda_bench", "verify"): "how many products are computed in float64",
    **{("cuda_rivals", used): "rivals are checked on the plan's bench" for used in ("cuda_bench", "cuda_peers", "cudnn")},
    ("cudnn", "cuda_peers"): "a peer is found as cuBLAS is",
    ("api", "frontends"): "model.onnx; imported when a model is read",
    ("__init__", "api"): "the public names, imported when first used",
    ("__main__", "cli"): "python -m pysim",
    ("cli", "__init__"): "the version",
    ("cli", "commands"): "the commands, each imported when it is used",
    ("commands", "__init__"): "the version",
    ("commands", "frontends"): "model.onnx; imported when a model is read",
}


def part_of(path: Path) -> str:
    """The layered part that a file belongs to: a module or a sub-package of pysim."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Parts that a file imports, inside functions and for types too; relative imports have no level here and fail."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {[*alias.name.split("."), "__init__"][1] for alias in node.names if alias.name.split(".")[0] == "pysim"}
        elif isinstance(node, ast.ImportFrom) and node.module == "pysim":
            found |= {alias.name if alias.name in LAYER else "__init__" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("pysim.")):
            assert not node.level, f"{path}, line {node.lineno}: a relative import; write from pysim. ..."
            found.add(str(node.module).split(".")[1])
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
EDGES = {(part_of(path), name) for path in FILES for name in imported(path)}


def test_every_part_of_the_package_has_a_layer():
    assert {part_of(path) for path in FILES} == set(LAYER)


def test_a_part_imports_only_lower_ones_and_the_listed_exceptions():
    upward = {(user, used) for user, used in EDGES if user != used and LAYER[user] <= LAYER[used]}
    assert upward - set(EXCEPTIONS) == set()


def test_every_exception_is_one_and_is_used():
    assert {pair for pair in EXCEPTIONS if pair not in EDGES or LAYER[pair[0]] > LAYER[pair[1]]} == set()


def test_errors_import_nothing_of_the_package():
    assert {used for user, used in EDGES if user == "errors"} == set()
