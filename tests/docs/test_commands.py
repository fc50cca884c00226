# SPDX-License-Identifier: Apache-2.0
"""Every `pysim` command that stands on a line of its own in the README or in docs/ runs as it is written, page by page, in a folder with
the files that the pages speak of.

Lists and built-in sets have one small layer here, and a search takes 0.2 s instead of its budget: what is written for minutes runs in
seconds. With PYSIM_LONG=1 they are as they are. What takes two minutes, an emulator or a second computer is left out, and what needs a
GPU or vl-convert may say so (exit code 3)."""

import re
import shlex
from pathlib import Path

import pytest
from checkout import ROOT
from command_line import cache, invoke, native, ok, own_files  # noqa: F401
from limits import SHARE

from pysim.problem import text

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"^(?: {4}|\$ )?(pysim .*)$", re.MULTILINE)
FENCE = re.compile(r"^```(?:sh)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
END = re.compile(r"\s{2,}|\s#\s")  # of a command; what follows explains it
LONG = SHARE >= 1
LEFT_OUT = ("machines calibrate", "--dask", "-m power10")  # run with PYSIM_LONG, but for --dask
PROBLEM = "conv:mb1ic16ih14oc16kh3ph1"
SPEC = re.compile(r"^    # caches\.toml\n((?:    .*\n|\n)*)", re.MULTILINE)


def written() -> dict[str, Path]:
    """The commands of the pages in their order, each once, and its page."""
    found: dict[str, Path] = {}
    for page in PAGES:
        content = page.read_text()
        indented = "\n".join(line for line in content.splitlines() if line.startswith("    ")) + "\n"
        for part in (*FENCE.findall(content), indented):
            for line in LINE.findall(part):
                for command in END.split(re.sub(r"\[[^]]*\]", "", line))[0].split("; "):
                    found.setdefault(command.strip(), page)
    return found


def one_small_layer(name: str) -> tuple[text.Layer, ...]:
    return (min(text._read_lines(text.SHIPPED / f"{name}.txt"), key=lambda layer: layer.workload.flops),)


@pytest.fixture
def folder(own_files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811
    """With the files that pages name before, or without, writing them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shapes.txt").write_text("gemm:512x512x512\n")
    (tmp_path / "lab" / "data" / "h200").mkdir(parents=True)
    (tmp_path / "problems").mkdir()
    for path in (ROOT / "problems").glob("*.txt"):
        (tmp_path / "problems" / path.name).write_text(path.read_text() if LONG else f"{PROBLEM}\n")
    helper, numpy_helper = (getattr(pytest.importorskip("onnx"), name) for name in ("helper", "numpy_helper"))
    np = pytest.importorskip("numpy")
    x, y = (helper.make_tensor_value_info(name, 1, [1, channels, 8, 8]) for name, channels in (("x", 3), ("y", 4)))
    weights = numpy_helper.from_array(np.ones((4, 3, 1, 1), np.float32), "w")
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "model", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    pytest.importorskip("onnx").save(model, "model.onnx")
    (tmp_path / "mine.toml").write_text(ok("machines", "show", "zen5", "--toml").replace('name = "zen5"', 'name = "mine"', 1))
    spec = SPEC.search((ROOT / "docs" / "cli.md").read_text())
    assert spec
    (tmp_path / "caches.toml").write_text(re.sub("(?m)^    ", "", spec[1]))
    if not LONG:
        monkeypatch.setattr(text, "_shipped", one_small_layer)
    ok("sweep", "caches.toml")
    return tmp_path


@native
def test_every_command_of_the_pages_runs_as_it_is_written(folder: Path) -> None:
    ran, failed = 0, []
    for command, page in written().items():
        if any(part in command for part in LEFT_OUT) and (not LONG or "--dask" in command):
            continue
        words = shlex.split(command.replace("PROBLEM...", "PROBLEM").replace("PROBLEM", PROBLEM))[1:]
        output = words[words.index(">") + 1] if ">" in words else None
        words = words[: words.index(">")] if output else words
        if not LONG:
            words += ["--seconds", "0"] if words[0] == "compare" and "--seconds" not in words else []
            words += ["--budget", ""] if words[0] == "search" and "--budget" not in words else []
            words = ["0.2" if before == "--budget" else word for before, word in zip(["", *words], words, strict=False)]
        result = invoke(*words)
        if output and output != "mine.toml":
            (folder / output).write_text(result.stdout)
        if output == "mine.json":
            (folder / "theirs.json").write_text(result.stdout)
        ran += 1
        missing = result.exit_code == 3 and ("cuda" in command or "h200" in command or "html" in command)
        measured = result.exit_code == 1 and "--baseline" in command  # a plan became slower, on a busy computer
        if result.exit_code and not missing and not measured:
            failed.append(f"{page.name}: {command}: {result.output}")
    assert not failed
    assert ran > 60


def test_make_runs_in_the_folder_that_the_page_exported_before() -> None:
    made = re.compile(r"^ {4}(?:pysim export .* -o (\S+)|make -C (\S+)) ", re.MULTILINE)
    for page in PAGES:
        exported = ""
        for one in made.finditer(re.sub(r"(?m)$", " ", page.read_text())):
            exported = one[1] or exported
            assert one[2] in (None, exported), f"{page.name}: {one[0]}"
