# SPDX-License-Identifier: Apache-2.0
"""Equations on tables, written once as NumPy, and evaluated often by the native library where there is one.

A table has a column for each schedule. Equations are functions of arrays whose last axis is the columns, and combine whole rows: sums,
quotients, minima, `np.where`, sums over other axes. Called with `Traced` arrays in place of numbers, such a function records what it does:
a `Program`, in which each operation on rows stands once however often it occurs. The library runs it for any table (`pysim_evaluate`,
native/planner/program.c), without NumPy's microsecond for each operation. It knows operations, not what they mean.

The equations themselves, called with numbers, give the same: each operation rounds alike. Only sums over an axis, which NumPy may add in
another order, and `np.exp` may differ in the last bit.

Numbers that a problem has once, not for each schedule, are `asked` of it, as is what an equation looks at (`if nest.in_place`): a program
serves the problems whose answers of this second kind are the recorded ones. A function that looks at a number of a `Traced` array raises
TypeError, because its program would hold for that number alone.

Worked number: lambda x, y: (np.minimum(x, y) + 1, np.minimum(x, y)) takes six instructions: two inputs, one minimum, one addition and two
outputs.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from pysim.caches import LruCache, once
from pysim.errors import MissingError, NativeError

Array = NDArray[np.float64]
# Evaluations by NumPy before equations are traced: tracing takes ten times as long as a program saves each time, and a process that plans a
# few problems should not pay for it. With 2, 4, 8 and 20 the slowest tenth of 300 products takes 6.5, 6.8, 7.5 and 8.5 ms (Zen 4)
OFTEN = 4
_PROBLEMS = 16  # whose answers are kept: those of the nests that one plan compares
_ALIGNED = 8  # numbers of a cache line, on which rows of the work array start
_Rows = NDArray[np.int64]

_OPERATIONS: dict[Any, str] = {
    np.add: "ADD",
    np.subtract: "SUBTRACT",
    np.multiply: "MULTIPLY",
    np.divide: "DIVIDE",
    np.minimum: "MINIMUM",
    np.maximum: "MAXIMUM",
    np.greater: "GREATER",
    np.greater_equal: "GREATER_EQUAL",
    np.equal: "EQUAL",
    np.bitwise_and: "MULTIPLY",  # of comparisons, which are 1 or 0, like the next
    np.bitwise_or: "MAXIMUM",
    np.floor: "FLOOR",
    np.ceil: "CEIL",
    np.sqrt: "SQRT",
    np.exp: "EXP",
    np.power: "POWER",
}
_SWAPPED: dict[Any, Any] = {np.less: np.greater, np.less_equal: np.greater_equal}
_NEUTRAL = {"ADD": (0.0, True), "SUBTRACT": (0.0, False), "MULTIPLY": (1.0, True), "DIVIDE": (1.0, False)}  # and whether on both sides
_POWERS: dict[float, Callable[[Any], Any]] = {2.0: lambda x: x * x, 1.0: lambda x: x, 0.5: np.sqrt}
_INPUT, _CONSTANT, _ASKED = "INPUT", "constant", "asked"  # values that no operation makes
_GIVEN, _UNMADE = (_CONSTANT, _ASKED), frozenset((_INPUT, _CONSTANT, _ASKED))
_UNUSED = (0, 0, 0)  # operands of an instruction


@once
def _library() -> tuple[Any, Any] | None:
    from pysim.runtime import cpu as runtime

    try:
        return runtime.library()
    except MissingError:
        return None


def evaluable() -> bool:
    """Whether there is a library that runs programs."""
    return _library() is not None


class Question(msgspec.Struct, frozen=True, cache_hash=True):
    """What equations ask of a problem: an attribute, or a function of it and constants (`asked`); with `field` a part of the answer."""

    name: str
    function: Callable[..., Any] | None = None
    constants: tuple[Any, ...] = ()
    field: str = ""

    def answer(self, of: Any) -> Any:
        answer = self.function(of, *self.constants) if self.function else getattr(of, self.name)
        return getattr(answer, self.field) if self.field else answer


class Answers(dict[Question, Any]):
    """The answers of a problem, each once for all programs that ask."""

    def __init__(self, problem: Any) -> None:
        super().__init__()
        self.problem = problem

    def __missing__(self, question: Question) -> Any:
        answer = self[question] = question.answer(self.problem)
        return answer


_ANSWERS = LruCache[Answers](_PROBLEMS)


def answers_of(problem: Any) -> Answers:
    """What is known of a problem's answers."""
    return _ANSWERS.get(problem) or _ANSWERS.put(problem, Answers(problem))


class Asked:
    """A problem while equations are traced. Numbers are asked of each problem anew; a program serves those that answer all else alike."""

    def __init__(self, recorder: "Recorder", problem: Any) -> None:
        self._recorder, self._problem = recorder, problem

    def __getattr__(self, name: str) -> Any:
        return self._recorder.ask(Question(name), self._problem)


_T = TypeVar("_T", bound=Callable[..., Any])


def asked(function: _T) -> _T:
    """A function of a problem and constants whose results equations take as they are, however it looks at the problem's numbers."""

    @wraps(function)
    def answer(problem: Any, *constants: Any) -> Any:
        if isinstance(problem, Asked):
            return problem._recorder.ask(Question(function.__qualname__, function, constants), problem._problem)
        return function(problem, *constants)

    return cast("_T", answer)


class Recorder:
    """The operations of a function that is traced. A value has a number: that of the operation that made it, of a constant, or of what is
    `asked` of a problem. `found`: what else was asked, which the function may have looked at."""

    def __init__(self) -> None:
        self.made: dict[tuple[Any, ...], int] = {}  # an operation and its operands, (CONSTANT, number), or (ASKED, question)
        self.found: dict[Question, Any] = {}

    def value(self, *key: Any) -> int:
        made = self.made
        return made.setdefault(key, len(made))

    def inputs(self, count: int) -> Array:
        """So many rows of input."""
        return cast("Array", Traced(self, np.array([self.value(_INPUT, at) for at in range(count)], np.int64)))

    def ask(self, question: Question, of: Any) -> Any:
        """The answer of a problem: numbers as traced ones, all else as it is."""
        answer = question.answer(of)
        if isinstance(answer, tuple) and hasattr(answer, "_fields"):
            return type(answer)(*(self.ask(msgspec.structs.replace(question, field=name), of) for name in answer._fields))
        if isinstance(answer, (int, float)) and not isinstance(answer, bool):
            return Traced(self, np.array(self.value(_ASKED, question)))
        self.found[question] = answer
        return answer

    def rows(self, of: Any) -> _Rows:
        """The values of an operand: of a traced array, or of numbers that are the same for all columns."""
        if isinstance(of, Traced):
            return of.rows
        if isinstance(of, (int, float)):
            return np.array(self.value(_CONSTANT, float(of)))
        array = np.asarray(of, dtype=np.float64)
        if array.ndim and array.shape[-1] != 1:
            raise TypeError(f"an array of shape {array.shape} meets traced columns; its last axis should be 1")
        of_rows = array[..., 0] if array.ndim else array
        return np.array([self.value(_CONSTANT, one) for one in of_rows.ravel().tolist()], np.int64).reshape(of_rows.shape)

    def apply(self, name: str, *operands: Any) -> "Traced":
        """The values of an operation on rows; a value that is one of its operands (x + 0, x / 1) is that operand."""
        rows, made = [one.rows if isinstance(one, Traced) else self.rows(one) for one in operands], self.made
        if not any(one.ndim for one in rows):  # most operations are of single rows
            values = [tuple(one.item() for one in rows)]
        else:
            if any(one.shape != rows[0].shape for one in rows):
                rows = [*np.broadcast_arrays(*rows)]
            values = [*zip(*(one.ravel().tolist() for one in rows), strict=True)]
        if neutral := _NEUTRAL.get(name):
            number, both = neutral
            known = made.get((_CONSTANT, number), -1)
            found = [
                one if other == known else other if both and one == known else made.setdefault((name, one, other), len(made))
                for one, other in values
            ]
        else:
            found = [made.setdefault((name, *of), len(made)) for of in values]
        return Traced(self, np.array(found, np.int64).reshape(rows[0].shape))


class Traced(NDArrayOperatorsMixin):
    """Stands for an array [..., columns] while equations are traced; `rows` [...] has the value of each row."""

    def __init__(self, recorder: Recorder, rows: _Rows) -> None:
        self.recorder, self.rows = recorder, np.asarray(rows)

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, out: tuple[Any, ...] = (), **options: Any) -> "Traced":
        if ufunc in _SWAPPED:
            ufunc, operands = _SWAPPED[ufunc], operands[::-1]
        elif ufunc is np.not_equal:
            return cast("Traced", ~(operands[0] == operands[1]))
        elif ufunc is np.invert:  # of a comparison
            ufunc, operands = np.subtract, (1.0, *operands)
        elif ufunc is np.power and isinstance(operands[1], float) and operands[1] in _POWERS:  # as NumPy does
            return _POWERS[operands[1]](operands[0])
        if method != "__call__" or ufunc not in _OPERATIONS or options:
            raise TypeError(f"{ufunc.__name__} ({method}) of traced columns is not recorded")
        found = self.recorder.apply(_OPERATIONS[ufunc], *operands)
        if not out:
            return found
        out[0].rows[...] = found.rows
        return cast("Traced", out[0])

    def __array_function__(self, function: Any, types: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> "Traced":
        if function is np.where and len(operands) == 3:
            return self.recorder.apply("SELECT", *operands)
        if function is np.stack and not options:
            return Traced(self.recorder, np.stack([self.recorder.rows(one) for one in operands[0]]))
        raise TypeError(f"{function.__name__} of traced columns is not recorded")

    def __bool__(self) -> bool:
        raise TypeError("equations that are traced hold for all numbers, and this asks for one")

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator["Traced"]:
        return (Traced(self.recorder, rows) for rows in self.rows)

    def __getitem__(self, index: Any) -> "Traced":
        return Traced(self.recorder, self.rows[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.rows[index] = self.recorder.rows(value)

    def astype(self, kind: Any) -> "Traced":
        """Itself: a comparison is recorded as 1 or 0."""
        return self

    def copy(self) -> "Traced":
        return Traced(self.recorder, self.rows.copy())

    @property
    def shape(self) -> tuple[Any, ...]:
        """Ends with the columns, which are not known."""
        return (*self.rows.shape, None)

    def swapaxes(self, one: int, other: int) -> "Traced":
        return Traced(self.recorder, self.rows.swapaxes(one, other))

    def take(self, indices: Any, axis: int) -> "Traced":
        return Traced(self.recorder, self.rows.take(indices, axis=axis))

    def reshape(self, *shape: Any) -> "Traced":
        """`shape` ends with the columns."""
        return Traced(self.recorder, self.rows.reshape(shape[:-1]))

    def sum(self, axis: int) -> "Traced":
        total, *others = (Traced(self.recorder, rows) for rows in np.moveaxis(self.rows, axis, 0))
        for one in others:
            total = total + one
        return total


def columns_of(array: Array) -> Any:
    """The number of columns of an array; of a traced one its recorder."""
    return array.recorder if isinstance(array, Traced) else array.shape[-1]


def empty(shape: Sequence[int], columns: Any) -> Array:
    """An array [shape, columns] to be filled in; `columns` is a number, or the recorder of traced ones."""
    if isinstance(columns, Recorder):
        return cast("Array", Traced(columns, np.zeros(shape, np.int64)))
    return np.empty((*shape, columns))


def as_rows(columns: Any, *rows: Any) -> Array:
    """Columns and constants as the rows of one array."""
    array = empty((len(rows),), columns)
    for at, row in enumerate(rows):
        array[at] = row
    return array


class Program(NamedTuple):
    """A recorded function: the library's struct and its instructions, its constants and questions, its numbers of elements, the part and
    shape of each result, and the answers for which it holds. `numbers`: constants with the answers of the last problems, which are frozen
    values; `type`, `address`: of numbers and of where they lie."""

    struct: Any
    instructions: Any
    constants: Array
    questions: tuple[Question, ...]
    work: int
    outputs: int
    results: tuple[tuple[slice, tuple[int, ...]], ...]
    found: dict[Question, Any]
    about: Any
    numbers: LruCache[Any]
    type: Any
    address: Any

    @classmethod
    def of(cls, equations: Callable[..., tuple[Sequence[Array], Any]], inputs: int, *problem: Any) -> "Program":
        """Traces equations of so many rows, and of a problem if there is one: their results, and what is `about` all of them. Needs the
        library (`evaluable`)."""
        recorder = Recorder()
        results, about = equations(recorder.inputs(inputs), *(Asked(recorder, one) for one in problem))
        rows = [recorder.rows(one) for one in results]
        instructions, first, registers = _registered(recorder.made, np.concatenate([one.ravel() for one in rows]).tolist())
        ffi, lib = cast("tuple[Any, Any]", _library())
        code = {name: getattr(lib, f"PYSIM_ROW_{name}") for name in (_INPUT, "OUTPUT", "SELECT", *_OPERATIONS.values())}
        numbers = itertools.chain.from_iterable((code[name], *rest) for name, *rest in instructions)
        listed = ffi.from_buffer("pysim_instruction[]", np.fromiter(numbers, np.int32))
        ends = [*itertools.accumulate(one.size for one in rows)]
        struct = ffi.new("pysim_program *", (len(instructions), listed, len(first), registers, inputs, ends[-1]))
        parts = tuple((slice(end - one.size, end), one.shape) for end, one in zip(ends, rows, strict=True))
        constants = np.array([number for kind, number in first if kind == _CONSTANT], np.float64)
        questions = tuple(question for kind, question in first if kind == _ASKED)
        lanes, found = registers * lib.PYSIM_PROGRAM_LANES, recorder.found
        types = ffi.typeof("double *"), ffi.typeof("uintptr_t")
        return cls(struct, listed, constants, questions, lanes, ends[-1], parts, found, about, LruCache(_PROBLEMS), *types)

    def __call__(self, inputs: Array, *problem: Any) -> list[Array]:
        """The results for a table of inputs [rows, columns]."""
        (ffi, lib), columns = cast("tuple[Any, Any]", _library()), inputs.shape[1]
        size = self.outputs * columns
        array = np.empty(size + self.work + _ALIGNED)  # of results, then the library's
        found, results = array[:size].reshape(self.outputs, columns), ffi.from_buffer(self.type, array)
        work = results + size
        work += -(int(ffi.cast(self.address, work)) // array.itemsize) % _ALIGNED  # vectors that cross lines take twice as long
        if lib.pysim_evaluate(self.struct, columns, self._constants(*problem), ffi.from_buffer(self.type, inputs), results, work):
            raise NativeError(ffi.string(lib.pysim_last_error()).decode())
        return [found[part].reshape(*shape, columns) for part, shape in self.results]

    def _constants(self, *problem: Any) -> Any:
        """Constants and the answers of a problem, for the library."""
        key = problem if self.questions else ()
        if (known := self.numbers.get(key)) is None:
            answers = answers_of(*problem) if self.questions else {}
            numbers = np.concatenate([self.constants, np.array([answers[question] for question in self.questions], np.float64)])
            known = self.numbers.put(key, cast("tuple[Any, Any]", _library())[0].from_buffer(self.type, numbers))
        return known


class Programs:
    """Programs of the same equations, each for the problems whose answers are those that it was recorded with: by the questions, then by
    their answers."""

    def __init__(self) -> None:
        self.recorded = dict[tuple[Question, ...], dict[tuple[Any, ...], Program]]()
        self.without, self.known = 0, LruCache[Program](_PROBLEMS)

    def of(self, trace: Callable[[], Program], *problem: Any) -> Program | None:
        """The program for a problem; None where the equations are to be called themselves: without the library, and before the `OFTEN`th
        evaluation that had no program."""
        if problem and (known := self.known.get(problem)):
            return known
        if not (program := self._recorded(*problem)):
            self.without += 1
            if self.without < OFTEN or not evaluable():
                return None
            self.without = 0
            program = trace()
            self.recorded.setdefault((*program.found,), {})[*program.found.values()] = program
        return self.known.put(problem, program) if problem else program

    def _recorded(self, *problem: Any) -> Program | None:
        answers = answers_of(*problem) if problem else {}
        for questions, programs in self.recorded.items():
            if program := programs.get(tuple([answers[question] for question in questions])):
                return program
        return None


class OfRows:
    """Equations of the rows of a table [rows, columns], of what else is known for all of it, and of a problem if there is one, which they
    ask. They are traced once for what is known and so many rows."""

    def __init__(self, equations: Callable[..., Sequence[Array]]) -> None:
        self.equations, self.programs = equations, LruCache[Programs](64)

    def __call__(self, rows: Array, *known: Any, problem: Any = None) -> Sequence[Array]:
        of = () if problem is None else (problem,)
        if (programs := self.programs.get(key := (len(rows), *known))) is None:
            programs = self.programs.put(key, Programs())

        def trace() -> Program:
            return Program.of(lambda traced, *asked: (self.equations(traced, *known, *asked), None), len(rows), *of)

        program = programs.of(trace, *of)
        return self.equations(rows, *known, *of) if program is None else program(np.ascontiguousarray(rows), *of)


def _registered(made: dict[tuple[Any, ...], int], results: Sequence[int]) -> tuple[list[tuple[Any, ...]], list[tuple[str, Any]], int]:
    """The instructions (operation, to, a, b, c) that make some values, the constants and then the questions of the first registers, and the
    number of registers. A register is used again once its value was read last."""
    keys = [*made]
    last = [-1] * len(keys)  # the place where each value is read last; -1: it is not needed
    for at in results:
        last[at] = len(keys)
    for at in range(len(keys) - 1, -1, -1):
        if last[at] >= 0 and keys[at][0] not in _UNMADE:
            for operand in keys[at][1:]:
                if last[operand] < 0:
                    last[operand] = at
    needed = [at for at, read in enumerate(last) if read >= 0]
    first = [at for kind in _GIVEN for at in needed if keys[at][0] == kind]
    place, free, registers = {at: register for register, at in enumerate(first)}, list[int](), len(first)
    kept, instructions = {*first}, list[tuple[Any, ...]]()
    for at in (at for at in needed if at not in kept):
        name, *operands = keys[at]
        if free:
            place[at] = free.pop()
        else:
            place[at], registers = registers, registers + 1
        read = operands if name == _INPUT else [place[one] for one in operands]
        instructions.append((name, place[at], *read, *_UNUSED[len(read) :]))
        if name != _INPUT:
            for one in operands:
                if last[one] == at and one not in kept:
                    free.append(place[one])
                    last[one] = -1  # an operand that occurs twice is free once
    instructions += [("OUTPUT", row, place[at], 0, 0) for row, at in enumerate(results)]
    return instructions, [keys[at] for at in first], max(registers, 1)
