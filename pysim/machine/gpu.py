# SPDX-License-Identifier: Apache-2.0
"""A GPU: multiprocessors and their pipes, L2, memory, and the constants of the cost model."""

from typing import Annotated, Literal

import msgspec

from pysim.machine.quantity import Count, Number, Source, Text, facts

SharedRule = Literal["volta", "turing", "ampere", "hopper"]  # the rules of bank conflicts, pysim/cachemodel/shared_memory/bank_rules.toml
OLDEST_BUILT = 75  # the capability below which nvcc of CUDA 13 compiles nothing


class GpuFamily(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the GPU cost model for one family of kernels (simt, or of one type: simt_f64).

    `launch_seconds` is what a launch costs between two events, `block_cycles` the start and end of a block's tile beside its latencies,
    `step_cycles` a k step beside its work, `meet_cycles` what a block waits to leave its part of a tile's sum for others, `hidden` the
    share (0..1) of a tile's start and end that other work of the SM hides, `efficiency` the share of its pipes' rate that its
    kernels reach where they were not measured one by one.
    """

    launch_seconds: Number
    block_cycles: Number
    step_cycles: Number
    meet_cycles: Number
    hidden: Number
    efficiency: Number


class GpuPasses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of kernels that move data before or after a convolution: the share of a copy's rate that they reach; instructions of an
    element (its place by divisions, load, store), of one of a copied operand, and of one of a transformed patch of F(4x4)."""

    rate_share: Number
    element_instructions: Number
    copied_instructions: Number
    patch_instructions: Number


class GpuDirect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of direct convolution: instructions of a multiply-add, two loads among them, and of a tap of all channels, its bounds and
    branches; and loads of a thread that are on their way together."""

    product_instructions: Number
    tap_instructions: Number
    loads_at_once: Number


class GpuModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the GPU cost model (`pysim/cachemodel/gpu/waves.py` has the equations).

    `pass_seconds` is what each re-layout of a call costs beside its copy, `clear_seconds` one that clears flags, `copy_share` the share
    of L2's or memory's rate that a re-layout reaches, `l2_share` that of L2 that operands can fill before they miss, `repeat_share`
    what bytes cost L2 that several blocks ask for at once, after the first, `single_cycles` an output of a tile whose SM stores each on
    its own, since rows of C are no whole vectors; the others are by family of kernels.
    """

    pass_seconds: Number
    clear_seconds: Number
    copy_share: Number
    l2_share: Number
    repeat_share: Number
    single_cycles: Number
    passes: GpuPasses
    direct: GpuDirect
    families: Annotated[dict[str, GpuFamily], msgspec.Meta(min_length=1)]


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="gpu"):
    """A GPU; `l1_bytes` of an SM include its shared memory, bandwidths are those of the whole chip, `port_bytes_per_cycle` what one SM can
    take from L2, `memory_port_bytes_per_cycle` from memory.

    `fma_per_cycle` is multiply-adds of one SM in one cycle, by pipe: a scalar type, or `tensor_` and the input type. `sustained_hz`
    is the clock that a pipe keeps up under load (power), by pipe, where it is not `frequency_hz`. `clusters_at_once`: how many clusters of
    so many blocks, each of which fills an SM, run at once; where it says nothing, as many as SMs are enough for.
    """

    schema: Literal[1]
    name: Text
    description: Text
    capability: Annotated[str, msgspec.Meta(pattern=r"^[0-9]+\.[0-9]$")]
    sms: Count
    frequency_hz: Number
    warps_per_sm: Count
    blocks_per_sm: Count
    registers_per_sm: Count
    shared_bytes_per_sm: Count
    shared_bytes_per_block: Count
    shared_banks: Count
    shared_rule: SharedRule
    l1_bytes: Count
    l1_latency_cycles: Number
    l2_bytes: Count
    l2_bytes_per_second: Number
    memory_bytes_per_second: Number
    l2_latency_cycles: Number
    memory_latency_cycles: Number
    port_bytes_per_cycle: Number
    memory_port_bytes_per_cycle: Number
    schedulers_per_sm: Count
    fma_per_cycle: Annotated[dict[str, Number], msgspec.Meta(min_length=1)]
    sustained_hz: dict[str, Number] = {}
    clusters_at_once: dict[str, Count] = {}
    model: GpuModel
    sources: dict[str, Source]

    def __hash__(self) -> int:
        return hash((self.name, self.capability, self.sms, self.frequency_hz, self.l2_bytes))

    @property
    def clock_hz(self) -> float:
        """The clock that cycles are counted in."""
        return self.frequency_hz.value

    @property
    def capability_number(self) -> int:
        """10 major + minor, as the kernel registry counts."""
        major, minor = self.capability.split(".")
        return 10 * int(major) + int(minor)

    def clusters(self, blocks: int) -> int:
        """Clusters of so many blocks that run at once, where each block fills an SM."""
        known, enough = self.clusters_at_once.get(str(blocks)), self.sms.value // blocks
        return min(known.value, enough) if known else enough

    @property
    def planning_only(self) -> str:
        """Why no build has kernels for this GPU, so that its plans cannot be run; "" where one has."""
        if self.capability_number >= OLDEST_BUILT:
            return ""
        oldest = f"{OLDEST_BUILT // 10}.{OLDEST_BUILT % 10}"
        return f"{self.name} has capability {self.capability}, and CUDA 13 compiles for {oldest} and later: no kernel is built for it"

    def assumed(self) -> list[str]:
        """Paths of the numbers that are of kind assumed."""
        return [path for path, value in facts(self) if value.kind == "assumed"]
