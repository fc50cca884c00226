# SPDX-License-Identifier: Apache-2.0
"""What the documents name is there: files, links, commands with their options; and tables are what their data files hold."""

import ast
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path

import click
import model_figure
import pytest
from checkout import ROOT
from command_line import cache, own_files  # noqa: F401  # fixtures
from emulation import built_worker  # noqa: F401

import pysim
from pysim.cli import main
from pysim.errors import MissingError

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTES = [
    *sorted((ROOT / "docs" / "notebooks").glob("*.md")),
    ROOT / "CHANGELOG.md",
    ROOT / "lab" / "README.md",
    ROOT / "tests" / "README.md",
    ROOT / "problems" / "README.md",
    *sorted((ROOT / "lab" / "notebook").glob("*.md")),
]
FILE = re.compile(r"(?<![\w/.~-])(?:pysim|tools|lab|problems|native|docs|tests|cross|examples)/[\w./*-]*\w")


@pytest.mark.parametrize("page", PAGES + NOTES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = set(FILE.findall(page.read_text()))
    assert not {one for one in named if "NAME" not in one and not any(ROOT.glob(one))}  # NAME: of a recipe


@pytest.mark.parametrize("page", PAGES + NOTES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert not [link for link in links if not link.startswith("http") and not (page.parent / link).exists()]


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", heading).strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES + NOTES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_part_of_a_page_leads_to_a_heading(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", page.read_text())
    assert not [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)]


def test_every_call_of_the_pages_examples_takes_what_it_is_given() -> None:
    pytest.importorskip("torch")
    examples = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    calls = [node for block in examples for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    ours = [(call, name[1]) for call in calls if (name := re.fullmatch(r"pysim\.([\w.]+)", ast.unparse(call.func)))]
    assert len(ours) > 15
    for call, name in ours:
        given = {word.arg: word.value for word in call.keywords if word.arg}
        inspect.signature(attrgetter(name)(pysim)).bind(*call.args, **given)


EXAMPLES = [
    pytest.param(block, id=f"{page.stem}-{i}")
    for page in PAGES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.timeout(1000)  # one may wait for a build
@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_runs_as_it_stands(
    example: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder with a model.onnx, and that alone."""
    monkeypatch.chdir(tmp_path)
    if "power10" in example:
        for fixture in ("own_files", "built_worker"):
            request.getfixturevalue(fixture)
    if "model.onnx" in example:
        helper = pytest.importorskip("onnx").helper
        x, y = (helper.make_tensor_value_info(name, 1, ("N", 3, 224, 224)) for name in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "model", [x], [y])
        pytest.importorskip("onnx").save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "model.onnx")
    if "torch" in example:
        torch = pytest.importorskip("torch")
        if "pysim" not in torch._dynamo.list_backends(exclude_tags=()):  # as where the package is installed
            torch._dynamo.register_backend(pysim.torch.backend, name="pysim")
        if 'device="cuda"' in example and not torch.cuda.is_available():
            pytest.skip("needs a GPU")
    try:
        exec(compile(example, "example", "exec"), {})
    except MissingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("path", sorted((ROOT / "pysim").rglob("*.py")), ids=lambda path: path.stem)
def test_every_file_that_a_module_names_is_there(path: Path) -> None:
    named = re.findall(r"`((?:pysim|tools|lab|problems|native|docs)/[\w./*-]*\w)`", path.read_text())
    assert not [one for one in named if not any(ROOT.glob(one))]


def commands() -> Iterator[list[str]]:
    """The words of every pysim command of the pages, without comments and what may be left out."""
    for page in PAGES:
        for line in re.findall(r"^(?: {4}|\$ )?(pysim .*)$|`(pysim [a-z][^`]*)`", page.read_text(), re.MULTILINE):
            text = re.split(r"\s{2,}|\s#\s|\s>>?\s|, ", re.sub(r"\[[^]]*\]", "", "".join(line)))[0]
            yield shlex.split(text.replace("--budget S", "--budget 1"))


def test_every_command_of_the_pages_is_one_with_its_options() -> None:
    found = list(commands())
    assert len(found) > 50
    for _, *words in found:
        command: click.Command = main
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            _, known, words = command.resolve_command(click.Context(command), words)
            assert known
            command = known
        with suppress(click.MissingParameter):  # a command that is spoken of
            command.make_context(command.name, words)


def test_tables_of_the_pages_are_what_their_data_hold(tmp_path: Path) -> None:
    for name in ("docs", "lab"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"} | {"PYTHONPATH": str(ROOT)}
    script = tmp_path / "lab" / "figures" / "update_pages.py"
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path, env=environment, timeout=600)
    for page in PAGES:
        copy = tmp_path / page.relative_to(ROOT)
        assert not copy.exists() or copy.read_text() == page.read_text(), f"{page.name}: python update_pages.py writes its tables"


def test_the_readmes_picture_has_the_speed_of_every_network_that_was_measured() -> None:
    picture = (ROOT / "docs" / "networks.svg").read_text()
    for label, (file, _) in model_figure.PRECISIONS.items():
        assert label in picture
        for one in model_figure.networks(file, model_figure.BATCHES)[1]:
            assert f"{one['model']}, batch {one['batch']}" in picture and f"{model_figure.speed(one):.2f}x" in picture
