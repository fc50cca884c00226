# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning, its notebooks run and show what they compute, and its pages are all reached."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from native_library import native

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.md"))
SAYS = {
    "plan": ["bound by kernel", "power10-e1050", "sconv"],
    "caches": ["rows of 4096 bytes: 256 of 256 accesses miss", "rows of 4160 bytes: 64 of 256 accesses miss", "counted"],
    "pytorch": ["largest difference: ", "layers and kinds of input run by pysim", "PyTorch's time over pysim's: ", "True"],
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. Warnings are errors; the notebooks run while it is built."""
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material", "mkdocstrings", "torch")):
        pytest.skip("needs pip install '.[docs]' and PyTorch")
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {
        "NO_MKDOCS_2_WARNING": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "1",
        "PYSIM_STORE": str(folder / "store.sqlite"),
    }
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", ROOT / "mkdocs.yml", "-d", folder / "site"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return folder / "site"


def test_each_notebook_is_known_here() -> None:
    assert {path.stem for path in NOTEBOOKS} == SAYS.keys()


@native
@pytest.mark.parametrize("name", SAYS)
def test_a_notebook_runs_and_shows_what_it_computes(name: str, site: Path) -> None:
    page = (site / "notebooks" / name / "index.html").read_text()
    words = re.sub(r"<[^>]*>", "", page).replace("&#39;", "'")
    for said in SAYS[name]:
        assert said in words


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_jupyter_opens_a_notebook_as_it_is(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    blocks = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    cells = [cell["source"] for cell in jupytext.read(path)["cells"] if cell["cell_type"] == "code"]
    assert cells == [block.rstrip("\n") for block in blocks]


@native
def test_the_generated_reference_has_every_command_function_and_field(site: Path) -> None:
    words = {path: (site / path / "index.html").read_text() for path in ("api", "reference/commands", "reference/machine-files")}
    assert all(f'id="{name}"' in words["api"] for name in ("pysim.api.conv2d", "pysim.torch.optimize", "pysim.onnx.load.load"))
    assert "y[N][M][P][Q]" in words["api"] and ">pysim.conv2d<" in re.sub(r"\s", "", words["api"]).replace("</code>", "<")
    assert all(f">{name}<" in words["reference/machine-files"] for name in ("read_bytes_per_cycle", "sets", "fma_per_cycle", "sms"))
    assert "--explain" in words["reference/commands"] and "--baseline" in words["reference/commands"]
    assert 'href="#plan"' in (site / "reference" / "documents" / "index.html").read_text()
    assert "cpu-kernels" in (site / "tried" / "index.html").read_text()
