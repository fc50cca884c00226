# SPDX-License-Identifier: Apache-2.0
"""A graph as a machine will run it: REWRITES, one after the other.

Integers come first, since their products have other forms; phases before fusion, which fuses into each; layouts last, since every
convolution must be known.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from pysim.errors import PlanError
from pysim.machine.cpu import Machine
from pysim.network import operators, reproducible
from pysim.network.attention import fuse_attention
from pysim.network.conv3d import as_images, with_volumes
from pysim.network.fusion import INPUT_OP, NORM, OVERWRITE, PARTS, RESIDUAL, SCALE, fuse
from pysim.network.graph import Graph, Node, Tensor
from pysim.network.halves.narrow import computes_narrow, with_narrow
from pysim.network.integers.few_bits import with_few_bits
from pysim.network.integers.fusion import with_integers
from pysim.network.integers.products import with_products
from pysim.network.integers.residuals import with_residuals
from pysim.network.lowering.images import with_images
from pysim.network.lowering.parallel import add_parallel
from pysim.network.native_ops.arrays import fuse_transpositions, norms_in_place
from pysim.network.operator_seconds import few_bits_seconds, reordering_seconds
from pysim.network.phases import with_phases
from pysim.network.plan import adds_bytes, integer_rows, problem_of, seconds_of, with_layouts
from pysim.problem.text import Workload
from pysim.record.accuracy import Accuracy
from pysim.registry.cpu import products_of_bytes
from pysim.runtime import cpu
from pysim.runtime.emulated import executor_for


class Target(NamedTuple):
    """What a graph is rewritten for. `blocks`: values may be in NCHWc."""

    on: Machine
    threads: int
    accuracy: Accuracy
    blocks: bool

    @property
    def is_reproducible(self) -> bool:
        return self.accuracy == "reproducible"

    def seconds(self, problem: Workload) -> float:
        return seconds_of(problem, self.on, self.accuracy)

    def copying(self, tensor: Tensor) -> float:
        return reordering_seconds(tensor, self.on)

    def rows(self, problem: Workload) -> str:
        """The type of the rows that compute a product of integers; emulated CPUs have none of integers."""
        return integer_rows(problem, self.on, self.threads) if executor_for(self.on) is cpu.LOCAL else "f32"

    @property
    def reads_rows(self) -> bool:
        """Whether kernels of bytes read rows in place here, by which products of two computed values run."""
        return executor_for(self.on) is cpu.LOCAL and any(self.on.unit(row.target) for row in products_of_bytes())


def _integers(graph: Graph, target: Target) -> Graph:
    def faster(made: Node, of: Node, own: Graph) -> bool:
        problem, _ = problem_of(of, own)
        return problem is not None and few_bits_seconds(made, own, target.on) < target.seconds(problem)

    if not target.is_reproducible and executor_for(target.on) is cpu.LOCAL:
        graph = with_few_bits(graph, faster, target.accuracy == "standard")
    whole = with_integers(graph, target.rows, target.accuracy == "standard")
    if target.reads_rows:
        whole = with_products(whole, target.accuracy == "standard")
    return with_residuals(whole, lambda node, of: adds_bytes(node, of, target.on, target.threads))


def _phases(graph: Graph, target: Target) -> Graph:
    return with_phases(graph, None if target.is_reproducible else target.seconds, target.copying)


def _fused(graph: Graph, target: Target) -> Graph:
    graph = fuse(graph, supports)
    if target.threads == 1 and not target.is_reproducible:  # rows beside each other are not divided among threads
        graph = norms_in_place(graph)
    return with_images(fuse_attention(fuse_transpositions(graph if target.is_reproducible else add_parallel(graph))))


def _volumes(graph: Graph, target: Target) -> Graph:
    if target.is_reproducible:  # in one order of sums, whichever is fastest here
        graph = as_images(graph, ())
        reproducible.refuse_others(graph)
    return with_volumes(graph, target.seconds, target.copying) if target.blocks else as_images(graph)


def _layouts(graph: Graph, target: Target) -> Graph:
    narrow = target.blocks and not target.is_reproducible and computes_narrow(target.on)
    graph = with_narrow(graph if narrow else graph._replace(narrow=frozenset()))
    return with_layouts(graph, target.on, target.accuracy).graph if target.blocks else graph


REWRITES: tuple[Callable[[Graph, Target], Graph], ...] = (_integers, _phases, _fused, _volumes, _layouts)


def rewritten(graph: Graph, target: Target) -> Graph:
    """The graph after all rewrites. Raises PlanError where a node then reads what no earlier node makes: its memory would hold anything."""
    for rewrite in REWRITES:
        graph = rewrite(graph, target)
    made = {"", *graph.inputs, *graph.constants}
    for node in graph.nodes:
        if missing := [name for name in node.inputs if name not in made]:
            raise PlanError(f"{node.op} {node.name} reads {missing[0]}, which nothing before it makes: a fault of a rewrite")
        made.update(node.outputs)
    return graph


def supports(node: Node, epilogue: Any) -> bool:
    """The kernels of convolutions and products apply any activation, those of convolutions add a residual, some operators apply ReLU."""
    if epilogue in (NORM, OVERWRITE, RESIDUAL, INPUT_OP, PARTS, SCALE):
        return epilogue == RESIDUAL and node.op == "Conv"
    return node.op in ("Conv", "Linear") or (epilogue == "relu" and node.op in operators.ACTIVATED)
