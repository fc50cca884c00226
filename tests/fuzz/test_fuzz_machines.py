# SPDX-License-Identifier: Apache-2.0
"""A machine file is refused with a reason, or every plan on it takes a finite time above nothing. PYSIM_LONG=1 tries far more files."""

import copy
import math
import os
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies_machines import DOCUMENTS, Document, documents

from pysim.errors import MachineError, PlanError, PysimError
from pysim.explain.text import explain
from pysim.machine.gpu import Gpu
from pysim.machine.load import from_document, load_any, names
from pysim.machine.quantity import quantities
from pysim.planner.plan import plan

EXAMPLES = 200_000 if os.environ.get("PYSIM_LONG") else 200
PROBLEMS = (
    "conv:mb1ic64ih56oc64kh3ph1", "conv:mb2ic32ih14oc64kh1:f16", "conv:g8ic8ih14oc8kh3ph1",
    "gemm:512x512x512", "gemm:512x512x512:f16", "gemm:300x200x700:tn:f64", "gemm:1000x64x100:s8",
)  # fmt: skip


def loaded(document: Document) -> Any:
    return from_document(document, "mine.toml")


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents(), st.sampled_from(PROBLEMS), st.booleans())
def test_a_changed_file_is_refused_or_plans_in_finite_time(document: Document, text: str, csa: bool) -> None:
    try:
        on = loaded(document)
    except MachineError:
        return
    model = "csa" if csa and not isinstance(on, Gpu) and on.csa else "full"
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        try:
            found = plan(text, on, model=model)
        except PysimError:
            return
        assert explain(found) and found.to_dict()
    if model == "full":
        assert math.isfinite(found.cost.seconds) and found.cost.seconds > 0


def every_place(name: str) -> list[tuple[str, str]]:
    return [(path, key) for path, key, _ in quantities(load_any(name)) if key != "schema"]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("value", [5e-324, 1e300, math.nan, math.inf, -1.0])
def test_no_rate_or_time_may_be_beyond_its_unit(name: str, value: float) -> None:
    document, tried = DOCUMENTS[name], 0
    for path, _ in every_place(name):
        other = copy.deepcopy(document)
        table: Any = other
        for part in path.split("."):
            table = table.get(part, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict) and isinstance(table.get("value"), float):
            table["value"], tried = value, tried + 1
            with pytest.raises(MachineError, match=rf"mine\.toml: {path}: value is {re.escape(str(value))}; it should lie in "):
                loaded(other)
    assert tried >= 4


def test_kernels_without_constants_of_their_family_are_rejected() -> None:
    document = copy.deepcopy(DOCUMENTS["h200"])
    families = document["model"]["families"]
    for name in [name for name in families if "mma" in name]:
        del families[name]
    found = plan("gemm:512x512x512", loaded(document))
    assert "_simt_" in found.schedule.kernel
    document["model"]["families"] = {"wgmma_f8": DOCUMENTS["h200"]["model"]["families"]["wgmma_f8"]}
    bare = loaded(document)
    with pytest.raises(PlanError, match=r"h200 has no constants of its family, \[model.families."):
        plan("conv:mb1ic64ih56oc64kh3ph1", bare)
