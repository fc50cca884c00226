# SPDX-License-Identifier: Apache-2.0
"""A GPU: multiprocessors and their pipes, L2, memory, and the constants of the cost model."""

from typing import Annotated, Literal

import msgspec

from pysim.caches import lazy
from pysim.machine.energy import Energy
from pysim.machine.quantity import Count, Number, Source, Text, facts

SharedRule = Literal["volta", "turing", "ampere", "hopper"]  # the rules of bank conflicts, pysim/cachemodel/shared_memory/bank_rules.toml
OLDEST_BUILT = 75  # the lowest capability that nvcc of CUDA 13 compiles for


class GpuFamily(msgspec.Struct, frozen=True, cache_hash=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the GPU cost model for one family of kernels (simt, or of one type: simt_f64).

    `launch_seconds`: a launch between two events. `block_cycles`: start and end of a block's tile, beyond latencies. `step_cycles`:
    overhead of a k-iteration. `meet_cycles`: a block's wait to count up the flag of a split-K tile. `hidden`: share (0..1) of a tile's
    start and end that each resident block of the SM (two at most) hides of what the others leave. `efficiency`: share of the pipe's rate
    that kernels reach, unless measured individually.
    """

    launch_seconds: Number
    block_cycles: Number
    step_cycles: Number
    meet_cycles: Number
    hidden: Number
    efficiency: Number


class GpuPasses(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of kernels that move data before or after a convolution: the share of a copy's rate that they reach; instructions per
    element (index divisions, load, store), per element of a copied operand, per element of a transformed F(4x4) patch, and per element of
    im2col's columns (divisions of 64 bits); of a copy that folds pixels into channels, per 16 bytes (whose place takes divisions) and per
    element (a bounds check and a load)."""

    rate_share: Number
    element_instructions: Number
    copied_instructions: Number
    patch_instructions: Number
    column_instructions: Number
    folded_vector_instructions: Number
    folded_element_instructions: Number


class GpuDirect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of direct convolution: instructions per multiply-add (two loads included) and per tap (bounds and branches, once for all
    channels); loads in flight per thread."""

    product_instructions: Number
    tap_instructions: Number
    loads_at_once: Number


class GpuResidues(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of products by residues (algorithm residues) of a type: instructions per residue of an operand's element, and per residue
    and 40-bit word of an element of the result; fixed cost of a launch beside the products'; blocks of an SM that convert rows at once;
    share of a pass's rate that converts an operand whose k lies across rows; rate of the s8 products over that of the s8 kernel in the
    model. Without them such products are not planned.
    """

    operand_instructions: Number
    result_instructions: Number
    launch_seconds: Number
    blocks_at_once: Number
    across_share: Number
    efficiency: Number


class GpuModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constants of the GPU cost model (`pysim/cachemodel/gpu/waves.py` has the equations).

    `pass_seconds`: fixed cost of a layout conversion beside its copy. `clear_seconds`: fixed cost of clearing flags. `copy_share`: share of
    L2's or memory's rate that a conversion reaches. `l2_share`: share of L2 that operands fill before they miss. `repeat_share`: relative
    cost of each simultaneous request for the same bytes of L2 after the first. `single_cycles`: storing one output by itself, when rows of
    C are no whole vectors. `row_ends_per_cycle`: box rows that the TMA units of all SMs fill behind an operand's end inside a sector. The
    others are by family of kernels.
    """

    pass_seconds: Number
    clear_seconds: Number
    copy_share: Number
    l2_share: Number
    repeat_share: Number
    single_cycles: Number
    row_ends_per_cycle: Number
    passes: GpuPasses
    direct: GpuDirect
    residues: dict[str, GpuResidues] = {}
    families: Annotated[dict[str, GpuFamily], msgspec.Meta(min_length=1)]


class Gpu(msgspec.Struct, frozen=True, dict=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="gpu"):
    """A GPU; `l1_bytes` of an SM include its shared memory, bandwidths are those of the whole chip, `port_bytes_per_cycle` what one SM can
    take from L2, `memory_port_bytes_per_cycle` from memory.

    `fma_per_cycle` is multiply-adds of one SM in one cycle, by pipe: a scalar type, or `tensor_` and the input type. `sustained_hz`
    is the clock that a pipe keeps up under load (power), by pipe, where it is not `frequency_hz`. `clusters_at_once`: by blocks of a
    cluster, how many clusters run at once if each block fills an SM; default: SMs / blocks. `gpcs`: groups of SMs whose simultaneous
    requests for the same bytes reach L2 once; `gpc_bytes_per_second`: what all of them together take from L2. Both or neither.
    `event_seconds`: what two events around a call add to its time; predictions are of such calls, and in a CUDA graph a launch takes so
    much less. `early_start_seconds`: what it takes less still where it starts while the launch before it ends.
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
    gpcs: Count | None = None
    gpc_bytes_per_second: Number | None = None
    event_seconds: Number | None = None
    early_start_seconds: Number | None = None
    model: GpuModel
    energy: Energy | None = None
    sources: dict[str, Source]

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def _hash(self) -> int:
        return hash((self.name, self.capability, self.sms.value, self.frequency_hz.value, self.l2_bytes.value))

    @property
    def clock_hz(self) -> float:
        """The clock that cycles are counted in."""
        return self.frequency_hz.value

    @lazy
    def capability_number(self) -> int:
        """10 major + minor, as the kernel registry counts."""
        major, minor = self.capability.split(".")
        return 10 * int(major) + int(minor)

    def clusters(self, blocks: int) -> int:
        """Clusters of `blocks` blocks that run at once if each block fills an SM."""
        known, enough = self.clusters_at_once.get(str(blocks)), self.sms.value // blocks
        return min(known.value, enough) if known else enough

    @property
    def planning_only(self) -> str:
        """Why no build has kernels for this GPU, so that its plans cannot run; "" if one has."""
        if self.capability_number >= OLDEST_BUILT:
            return ""
        oldest = f"{OLDEST_BUILT // 10}.{OLDEST_BUILT % 10}"
        return f"{self.name} has capability {self.capability}, and CUDA 13 compiles for {oldest} and later: no kernel is built for it"

    def assumed(self) -> list[str]:
        """Paths of the numbers that are of kind assumed."""
        return [path for path, value in facts(self) if value.kind == "assumed"]
