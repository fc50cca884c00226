# SPDX-License-Identifier: Apache-2.0
"""The public functions as Markdown: their names, parameters and docstrings.

python lab/figures/update_pages.py          # puts them into docs/api.md
"""

import inspect
from typing import Any

import pysim
import pysim.torch
from pysim import cachemodel

CONVOLUTIONS = ("conv2d", "conv1d", "conv1d_stream", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
PUBLIC: dict[str, tuple[Any, tuple[str, ...]]] = {
    "pysim": (pysim, (*CONVOLUTIONS, "gemm", "prepare", "plan", "plans", "compare", "load", "export")),
    "pysim.torch": (pysim.torch, ("optimize", "backend", "report", "save", "load", "refresh")),
    "pysim.cachemodel": (cachemodel, ("Cache", "Hierarchy", "SharedMemory")),
}


def parameters(of: Any) -> str:
    """The names, with their defaults; / and * as in a call."""
    found = inspect.signature(of)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in found.parameters.values()]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def page() -> str:
    parts = []
    for module, (of, names) in PUBLIC.items():
        parts.append(f"## {module}\n")
        for name in names:
            one = getattr(of, name)
            parts.append(f"### {module}.{name}\n\n    {name}{parameters(one)}\n\n```text\n{inspect.getdoc(one)}\n```\n")
    return "\n".join(parts)
