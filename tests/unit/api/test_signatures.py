# SPDX-License-Identifier: Apache-2.0
"""The public functions take their arguments in the documented order; further arguments follow."""

import inspect

import pytest

import pysim
from pysim.cachemodel import Cache, SharedMemory

SIGNATURES = {
    "conv2d": "x w bias stride padding dilation groups activation machine threads accuracy plan out",
    "gemm": "a b c alpha beta trans_a trans_b bias activation machine threads accuracy plan out",
    "prepare": "problem weights bias activation machine threads plan",
    "plan": "problem machine threads accuracy error_limit layout memory_limit name",
    "plans": "problem machine top",
    "compare": "problem machine",
    "load": "path machine threads accuracy",
}


def names(function) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_documented_order(name):
    documented = SIGNATURES[name].split()
    assert names(getattr(pysim, name))[: len(documented)] == documented


def test_the_cache_models_take_what_is_documented():
    assert names(SharedMemory.wavefronts) == ["addresses", "width", "store", "active"]
    assert names(Cache)[:3] == ["name", "sets", "ways"] and {"line_bytes", "policy"} <= {*names(Cache)}
    assert {"banks", "rule"} <= {*names(SharedMemory)}
