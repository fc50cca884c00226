# SPDX-License-Identifier: Apache-2.0
"""A user's epilogue: an expression in x, written as in C or Python, parsed and written out as C. Nothing is evaluated.

    x * tanh(x)     max(x, 0.1 * x)     x > 0 ? x : exp(x) - 1     fminf(fmaxf(x, 0.0f), 6.0f)

    choice   = or ["?" choice ":" choice]          one comparison
    or       = sum [("<" | "<=" | ">" | ">=") sum]
    sum      = product {("+" | "-") product}
    product  = sign {("*" | "/") sign}
    sign     = ["-" | "+"] sign | number | "x" | function "(" choice {"," choice} ")" | "(" choice ")"

Worked example: `x * tanh(x)` is `(x * tanh(x))` for a number and `(x * hyperbolic_tangent(x))` for a vector (templates/activations.h).
"""

import re
from typing import NamedTuple

from pysim.errors import PlanError, choose, quoted

MOST = 2000  # characters
DEEPEST = 50  # parentheses and signs within one another
_TOKEN = re.compile(r"\s*(?:((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fF]?(?![\w.])|(\w+)|(<=|>=|[-+*/()<>?:,]))")
_ARGUMENTS = {"min": 2, "max": 2}  # of functions; others have one
# name -> (in C for a number, for a vector)
FUNCTIONS = {
    "exp": ("exp", "exponential"),
    "tanh": ("tanh", "hyperbolic_tangent"),
    "erf": ("erf", "error_function"),
    "sigmoid": ("plan_logistic", "plan_sigmoid"),
    "sqrt": ("sqrt", "plan_sqrt"),
    "log": ("log", "plan_log"),
    "abs": ("fabs", "plan_abs"),
    "max": ("fmax", "plan_max"),
    "min": ("fmin", "plan_min"),
}
_ALIASES = {"fabs": "abs", "fmax": "max", "fmin": "min"}


class Code(NamedTuple):
    """An expression in C: of a number, whose type is T, and of a vector (templates/instance.h)."""

    number: str
    vector: str


def code_of(expression: str) -> Code:
    """The C code of an epilogue; PlanError says what is not understood, and where."""
    if not isinstance(expression, str) or not expression.strip():
        raise PlanError(f"epilogue is {quoted(expression)}; expected an expression in x, such as x * tanh(x)")
    if len(expression) > MOST:
        raise PlanError(f"epilogue has {len(expression):,} characters; it should have at most {MOST:,}")
    parser = _Parser(expression)
    code = parser.choice(0)
    parser.expect("", "an operator or the end")
    if not parser.uses_x:
        raise PlanError(f"epilogue {quoted(expression)} does not depend on x, the result")
    return code


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.uses_x = text, False
        self.tokens: list[tuple[str, str, int]] = []  # (kind, text, place)
        at, end = 0, len(text.rstrip())
        while at < end:
            if not (match := _TOKEN.match(text, at)) or not text.isascii():
                raise self._error(at, "that is no number, name or operator")
            kind = ("number", "name", "sign")[match.lastindex - 1 if match.lastindex else 0]
            self.tokens.append((kind, match[match.lastindex or 0], match.start(match.lastindex or 0)))
            at = match.end()
        self.tokens.append(("end", "", end))
        self.next = 0

    def _error(self, at: int, what: str) -> PlanError:
        return PlanError(f"epilogue {quoted(self.text)}, character {at + 1}: {what}")

    def take(self, *signs: str) -> str | None:
        """The next token if it is one of these signs."""
        kind, text, _ = self.tokens[self.next]
        if kind in ("sign", "end") and text in signs:
            self.next += kind == "sign"
            return text
        return None

    def expect(self, sign: str, named: str = "") -> None:
        if self.take(sign) is None:
            _, found, at = self.tokens[self.next]
            raise self._error(at, f"expected {named or quoted(sign)}, found {quoted(found) if found else 'the end'}")

    def choice(self, depth: int) -> Code:
        _, _, at = self.tokens[self.next]
        if depth > DEEPEST:
            raise self._error(at, f"more than {DEEPEST} parentheses and signs within one another")
        left = self.sum(depth)
        sign = self.take("<", "<=", ">", ">=")
        if not sign:
            return left
        right = self.sum(depth)
        self.expect("?", '"?", since a comparison chooses between two values, as in x > 0 ? x : 0.1 * x')
        yes = self.choice(depth + 1)
        self.expect(":")
        no = self.choice(depth + 1)
        vector = f"plan_select((BITS)({left.vector} {sign} {right.vector}), {yes.vector}, {no.vector})"
        return Code(f"({left.number} {sign} {right.number} ? {yes.number} : {no.number})", vector)

    def sum(self, depth: int) -> Code:
        left = self.product(depth)
        while sign := self.take("+", "-"):
            left = _joined(left, sign, self.product(depth))
        return left

    def product(self, depth: int) -> Code:
        left = self.sign(depth)
        while sign := self.take("*", "/"):
            left = _joined(left, sign, self.sign(depth))
        return left

    def sign(self, depth: int) -> Code:
        kind, text, at = self.tokens[self.next]
        if depth > DEEPEST:
            raise self._error(at, f"more than {DEEPEST} parentheses and signs within one another")
        if self.take("-"):
            of = self.sign(depth + 1)
            return Code(f"(-{of.number})", f"(-{of.vector})")
        if self.take("+"):
            return self.sign(depth + 1)
        if self.take("("):
            inner = self.choice(depth + 1)
            self.expect(")")
            return inner
        self.next += kind != "end"
        if kind == "number":
            value = float(text)
            if not value <= 3e38:
                raise self._error(at, f"{quoted(text)} exceeds a float")
            return Code(f"T({value!r})", f"v_set1((T){value!r})")
        if kind == "name" and text == "x":
            self.uses_x = True
            return Code("x", "x")
        if kind == "name":
            return self.call(text, at, depth)
        raise self._error(at, f"expected a number, x, a function or a parenthesis, found {quoted(text) if text else 'the end'}")

    def call(self, name: str, at: int, depth: int) -> Code:
        known = name if name in FUNCTIONS or name in _ALIASES else name.removesuffix("f")
        known = _ALIASES.get(known, known)
        if known not in FUNCTIONS:
            raise self._error(at, f"there is no function {quoted(name)}; {choose(name, [*FUNCTIONS, 'x'])}")
        self.expect("(")
        given = [self.choice(depth + 1)]
        while self.take(","):
            given.append(self.choice(depth + 1))
        self.expect(")")
        if len(given) != (count := _ARGUMENTS.get(known, 1)):
            raise self._error(at, f"{name} takes {count} argument{'s' * (count > 1)}, not {len(given)}")
        number, vector = FUNCTIONS[known]
        return Code(f"{number}({', '.join(one.number for one in given)})", f"{vector}({', '.join(one.vector for one in given)})")


def _joined(left: Code, sign: str, right: Code) -> Code:
    return Code(f"({left.number} {sign} {right.number})", f"({left.vector} {sign} {right.vector})")
