# SPDX-License-Identifier: Apache-2.0
"""A user's epilogue is parsed, never evaluated; what is not understood is refused with its place."""

import math
import random

import pytest

from pysim.errors import PlanError
from pysim.standalone.expression import code_of

C = {"T": float, "fmax": max, "fmin": min, "exp": math.exp, "tanh": math.tanh, "fabs": abs, "sqrt": math.sqrt, "__builtins__": {}}


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("x * tanh(x)", lambda x: x * math.tanh(x)),
        ("1 - 2 - x / 3 / -x", lambda x: 1 - 2 - x / 3 / -x),
        ("-x * -(+x - .5e-1f) + 2.f", lambda x: -x * -(x - 0.05) + 2),
        ("fmaxf(x, 0.1 * x) - min(exp(x), sqrt(abs(x)))", lambda x: max(x, 0.1 * x) - min(math.exp(x), math.sqrt(abs(x)))),
    ],
)
def test_an_expression_means_what_it_means_in_c(text: str, meaning) -> None:
    for x in (random.Random(1).uniform(-3, 3) for _ in range(20)):
        assert eval(code_of(text).number, C | {"x": x}) == pytest.approx(meaning(x), rel=1e-14)


def test_a_comparison_chooses() -> None:
    assert code_of("x <= 1 ? x : 1 < x ? 2 : 3").number == "(x <= T(1.0) ? x : (T(1.0) < x ? T(2.0) : T(3.0)))"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected an expression"),
        ("3", "does not depend on x"),
        ("x +", "character 4: expected a number, x, a function"),
        ("x; system(1)", "character 2: that is no number"),
        ("__import__('os')", "character 12: that is no number"),
        ("system(x)", 'there is no function "system"'),
        ("y * x", 'there is no function "y"'),
        ("tan(x)", 'did you mean "tanh"'),
        ("max(x)", "max takes 2 arguments, not 1"),
        ("x > 0", "a comparison chooses between two values"),
        ("x > 0 ? x", "expected"),
        ("(x", 'expected ")"'),
        ("x 2", "expected an operator or the end"),
        ("1e999 * x", "exceeds a float"),
        ("x" + "*x" * 2000, "characters"),
        ("(" * 200 + "x" + ")" * 200, "within one another"),
        ("-" * 200 + "x", "within one another"),
        ("x */* */ x", "expected a number"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError) as refused:
        code_of(text)
    assert words in str(refused.value) and "\n" not in str(refused.value)
