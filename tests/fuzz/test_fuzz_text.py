# SPDX-License-Identifier: Apache-2.0
"""Whatever is written as a problem, a list or a command: layers or a sentence, in bounded time and memory."""

import re

import pytest
from command_line import invoke
from hypothesis import given
from hypothesis import strategies as st
from limits import bounded, inputs

from pysim.errors import PysimError
from pysim.problem import text as workload
from pysim.problem.dtypes import GEMM_DTYPES
from pysim.problem.gemm import LAYOUTS
from pysim.problem.text import Layer, parse, resolve

WHOLE = [layer.workload.text for name in ("resnet50", "googlenet", "cutlass") for layer in resolve([name])]
WHOLE += ['conv:ic3ih9oc4kh3n"a label"', "conv:ic3ih9oc4kh3_nlabel", "mb1ic3ih9oc4kh3", "512x64:64x8", "resnet18:mb4:f16"]
PARTS = [*workload._FIELDS, *GEMM_DTYPES, *LAYOUTS, *workload.sets(), "conv:", "gemm:", ":", "x", "_", "n", '"', 'n"', "#"]
PARTS += ["0", "1", "3", "٣", "³", "-1", "1e3", "9" * 20, "0" * 5000, " ", "\t", "\r\n", "\0", "\x1b[31m", "\ufeff", "\ud800", "é", "@"]
soup = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


@st.composite
def changed(draw: st.DrawFn) -> str:
    """A right text with a few pieces cut out, doubled or put in."""
    text = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(0, 4))):
        at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 4))
        text = text[:at] + draw(st.sampled_from(["", text[at : at + length] * 2, *PARTS])) + text[at + length :]
    return text


words = st.one_of(
    changed(), soup, st.text(max_size=40), st.builds(lambda text, times: (text * times)[:100_000], soup, st.sampled_from([1, 1000, 20_000]))
)


@inputs(40_000)
@given(words)
def test_any_word_is_layers_or_a_sentence(word):
    found = bounded(resolve, [word], lambda path: [])
    if isinstance(found, list) and word.strip().startswith(("conv:", "gemm:")):
        (layer,) = found
        assert parse(layer.workload.text) == layer.workload
    if isinstance(found, PysimError):
        assert len(str(found)) < 3000


@inputs(30_000)
@given(
    content=st.one_of(st.binary(max_size=200), st.lists(words, max_size=8).map(lambda lines: "\n".join(lines).encode("utf-8", "replace")))
)
def test_any_list_is_layers_or_a_sentence(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "list.txt"
    path.write_bytes(content)
    found = bounded(resolve, [f"@{path}"])
    assert isinstance(found, PysimError) or all(isinstance(layer, Layer) for layer in found)


# The command line

SMALL = ["conv:mb1ic8ih10oc8kh3ph1", "gemm:16x16x16", 'conv:ic3ih9oc4kh3n"\x1b[31m"', "transpose-32x32", "8,4:4,33", "zen4", "f32", "show"]
OPTIONS = [
    "-m",
    "zen4",
    "h200",
    "host.toml",
    "--top",
    "--json",
    "--explain",
    "--model",
    "csa",
    "--layout",
    "--memory-limit",
    "1MiB",
    "--every",
]
OPTIONS += [
    "--micro-kernel",
    "4x16",
    "4x٣",
    "--stationary",
    "input",
    "--cold",
    "--width",
    "8",
    "--store",
    "--rule",
    "hopper",
    "--list",
    "--help",
]
OPTIONS += ["--cuda", "--toml", "--version", "--", "-h", "nan", "-1", "٣", "1_0", "9" * 30, "9" * 5000, "", "\x1b[31m", "\ud800", "\x9b"]
COMMANDS = ["plan", "plan", "cache", "banks", "kernels", "machines"]
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")


def is_small(word: str) -> bool:
    """Not a problem that a model or a simulator would think about for long."""
    try:
        return all(layer.workload.flops < 1e6 for layer in resolve([word], lambda path: []))
    except PysimError:
        return True


arguments = st.lists(st.one_of(st.sampled_from(SMALL), st.sampled_from(OPTIONS), words.filter(is_small)), max_size=7)


@inputs(8_000)
@given(command=st.one_of(st.sampled_from(COMMANDS), words), arguments=arguments)
def test_any_command_ends_with_an_exit_code_and_steers_no_terminal(tmp_path_factory, command, arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        patch.setenv("COLUMNS", "80")
        result = bounded(invoke, command, *arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code in range(4)
    assert "Traceback" not in result.output
    assert not STEERS.search(result.output)
