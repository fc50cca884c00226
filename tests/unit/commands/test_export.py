# SPDX-License-Identifier: Apache-2.0
"""`pysim export` refuses with one sentence, and then leaves nothing behind."""

from pathlib import Path

import pytest
from command_line import SMALL, cache, ok, own_files, refused  # noqa: F401

import pysim

pytestmark = pytest.mark.usefixtures("own_files")


def test_an_export_says_how_to_build_it(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    folder.mkdir()
    assert f"make -C {folder} test" in ok("export", SMALL, "-m", "zen4", "-o", str(folder))
    assert {"Makefile", "plan.h", "main.c", "README.md", "LICENSE", "native"} == {path.name for path in folder.iterdir()}
    assert "Apache" in (folder / "LICENSE").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-o", "there/plan"), "there is no folder"),
        (("-o", "file"), "is a file"),
        (("-o", "full"), "is not empty"),
        (("-o", "plan", "-m", "zen44"), "zen4"),
        (("-o", "plan", "--epilogue", "tan(x)"), "there is no function"),
        (("-o", "plan", "--algorithm", "fft"), "fft"),
    ],
)
def test_a_mistake_is_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full", "file").write_text("")
    Path("file").write_text("")
    assert sentence in refused(2, "export", SMALL, *words, *["-m", "zen4"] * ("-m" not in words))
    assert not Path("plan").exists() and [*Path("full").iterdir()] == [Path("full", "file")]


def test_whole_numbers_have_no_epilogue(tmp_path: Path) -> None:
    with pytest.raises(pysim.PysimError, match="whole numbers"):
        pysim.export("gemm:8x8x8:s8", tmp_path / "plan", "power10-e1050", epilogue="x * x")
