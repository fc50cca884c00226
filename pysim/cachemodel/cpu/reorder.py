# SPDX-License-Identifier: Apache-2.0
"""What it costs to bring planes into blocks of channels and back (`native/conv/blocked.c`).

    pack      squares of L planes x L elements, L lanes, are transposed: of each vector a load, a store and log2 L shuffles, one a cycle
    transfer  input and results, and the blocks of one image, which all images take in turn, a whole run after they were used last

Worked number: 128 channels of 56x56 in FP32 on 16 lanes: 25,088 vectors, 25,088 (1/2 + 1 + 4) = 137,984 cycles at two loads and one store a
cycle.
"""

from functools import lru_cache
from math import log2

import numpy as np

from pysim.cachemodel.cpu.cost import Pass, pass_of
from pysim.cachemodel.cpu.loops import Extent, Loop, LoopNest, Operand
from pysim.machine.cpu import Machine, Unit
from pysim.problem.conv import Conv
from pysim.record.state import State


def transposed_cycles(elements: float, size: int, unit: Unit) -> float:
    """Of transposing so many elements of `size` bytes, all of them in L1."""
    lanes = unit.lanes(size)
    each = 1 / unit.loads_per_cycle.value + 1 / unit.stores_per_cycle.value
    return elements / lanes * (each + max(1.0, log2(lanes)))


def moved_elements(w: Conv) -> tuple[int, int]:
    """Of an image and of its results."""
    return w.channels * w.height * w.width, w.filters * w.windows


def reordering_cycles(w: Conv, machine: Machine) -> float:
    """Of both, all of them in L1."""
    return w.batch * sum(transposed_cycles(count, w.element_bytes, _unit(machine)) for count in moved_elements(w))


def _unit(machine: Machine) -> Unit:
    """What transposes."""
    return max(machine.core.units, key=lambda one: one.vector_bytes)


@lru_cache(maxsize=64)
def reordering(w: Conv, machine: Machine, state: State) -> tuple[Pass, Pass]:
    """Into blocks, and back."""
    size, (read, written) = w.element_bytes, moved_elements(w)
    filters = w.filter_elements

    def moving(names: tuple[str, str], elements: int, room: float) -> Pass:
        of_images = {"images": Extent(elements * size, elements * size * w.batch)}
        of_one = {"run": Extent(elements * size, elements * size)}  # blocks of one image, which all take in turn
        extents = (of_images, of_one) if names[0] == "input" else (of_one, of_images)
        source, target = (Operand(name, of, "images") for name, of in zip(names, extents, strict=True))
        others = Operand("", {"run": Extent(room * size, room * size)}, "images")
        loops = (Loop("images", "images", 1, w.batch),)
        nest = LoopNest(loops, (source, target._replace(written=True), others), {"images": w.batch, "run": 1}, 1)
        return pass_of(nest, machine, {"pack": np.array([w.batch * transposed_cycles(elements, size, _unit(machine))])}, state)

    return moving(("input", "blocks"), read, filters + 2.0 * written), moving(("sums", "output"), written, filters + 2.0 * read)
