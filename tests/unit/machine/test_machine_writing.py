# SPDX-License-Identifier: Apache-2.0
"""Machine files: whatever they say is a machine or a MachineError, and writing one back loses nothing."""

import math
import tomllib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pysim.errors import MachineError
from pysim.machine.gpu import Gpu
from pysim.machine.load import SHIPPED, from_document, load, load_any, loads, names
from pysim.machine.quantity import Count, Number, Source, facts
from pysim.machine.write import to_toml

TEXTS = [(SHIPPED / f"{name}.toml").read_text() for name in ("zen4", "h200")]


@given(st.text(max_size=200))
def test_random_text_raises_machine_errors_only(text: str) -> None:
    with pytest.raises(MachineError):
        loads(text)


fragments = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["{", "}", "[", "]", "=", '"', "nan", "-1", "1e999", "1979-05-27", "true", "[[levels]]", "[memory]", "\0"]),
)


@given(st.sampled_from(TEXTS), st.data(), fragments)
def test_a_damaged_file_raises_machine_errors_only(text: str, data: st.DataObject, fragment: str) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 60)))
    try:
        machine = loads(text[:start] + fragment + text[end:])
    except MachineError:
        return
    assert loads(to_toml(machine)) == machine


values = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.dates()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["value", "kind", "source", "name"]), inner),
    max_leaves=6,
)


@given(st.sampled_from(TEXTS), st.data(), values)
def test_a_document_with_any_value_in_any_place_raises_machine_errors_only(text: str, data: st.DataObject, value: Any) -> None:
    document: Any = tomllib.loads(text)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = value
    try:
        checked = from_document(document, "x")
    except MachineError:
        return
    assert all(math.isfinite(fact.value) for _, fact in facts(checked) if isinstance(fact, Number))


# Writing one back


@pytest.mark.parametrize("name", names())
def test_writing_a_shipped_machine_back_loses_nothing(name: str) -> None:
    machine = load_any(name)
    assert loads(to_toml(machine)) == machine


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(words, words, words, st.floats(min_value=1e-3, max_value=1e7), st.integers(1, 1 << 24))
def test_any_text_and_any_number_survive_writing_back(key: str, title: str, note: str, value: float, sets: int) -> None:
    zen4 = load("zen4")
    number = Number(value=value, kind="fitted", source=key, error=0.0)
    level: Any = msgspec.structs.replace(zen4.levels[0], name=note, sets=sets, latency_cycles=number)
    machine = msgspec.structs.replace(
        zen4,
        name=title,
        levels=(level,),
        csa=None,
        sources=zen4.sources | {key: Source(title=title, note=note), "value": Source(title="v", url=note)},
    )
    assert loads(to_toml(machine)) == machine


def test_a_table_is_written_whatever_its_keys() -> None:
    h200 = load_any("h200")
    assert isinstance(h200, Gpu)
    machine = msgspec.structs.replace(h200, fma_per_cycle={"value": h200.fma_per_cycle["f32"], "a b": h200.fma_per_cycle["f64"]})
    assert tomllib.loads(to_toml(machine))["fma_per_cycle"].keys() == {"value", "a b"}


def test_a_count_is_written_as_a_whole_number() -> None:
    h200 = load_any("h200")
    assert isinstance(h200, Gpu) and h200.sms == Count(value=132, kind="measured", source="device")
    assert 'sms = {value = 132, kind = "measured", source = "device"}' in to_toml(h200)
