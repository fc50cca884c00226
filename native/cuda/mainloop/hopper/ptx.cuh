/* SPDX-License-Identifier: Apache-2.0
 * The instructions of Hopper that C++ has no words for: mbarriers, the tensor memory accelerator (TMA), clusters, register hand-over. One
 * function each. PTX ISA 8.0, sections "mbarrier", "cp.async.bulk.tensor", "barrier.cluster", "setmaxnreg". */
#ifndef PYSIM_CUDA_WGMMA_PTX_CUH
#define PYSIM_CUDA_WGMMA_PTX_CUH
#include <cuda.h>
#include <stdint.h>

#include "core/ptx.cuh"

namespace pysim {
namespace hopper {

/* mbarriers: a phase ends when `count` arrivals and all announced bytes are in; waiting names the parity of the phase that must
 * be over. */
__device__ inline void barrier_init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_end(uint32_t barrier) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }
__device__ inline void barrier_arrive_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* To give memory back that copies will fill: only when what was read from it is in registers and used, or waited for (wgmma.wait_group). Arriving
 * orders nothing: a load that was issued before may read after the copy, which is not in the order of loads and stores. And the
 * assembler may move an instruction that is all registers to below the arrival: of what is read last at least one user must stay above. */
__device__ inline void barrier_arrive(uint32_t barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }
/* Arrives at the barrier that lies at the same place in block `rank` of the cluster. Not .release.cluster: that makes a membar (a
 * step of 64x64x64 took 0.66 us instead of 0.22 on an H200), and all that must come before are wgmma's reads, which are waited for. */
__device__ inline void barrier_arrive_at(uint32_t barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier), "r"(rank) : "memory");
}
/* A place in shared memory as block `rank` of the cluster has it, and 16 bytes that are stored there. */
__device__ inline uint32_t address_at(uint32_t address, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ inline void store_at(uint32_t there, const float *v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
}
__device__ inline uint4 load_shared(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
    return v;
}
__device__ inline void barrier_wait(uint32_t barrier, int parity) {
    int done = 0;
#ifdef PYSIM_CUDA_BOUNDED_WAITS /* a wait that never ends becomes an error */
    for (int spins = 0; !done; spins++) {
        if (spins > 1 << 22) asm volatile("trap;");
#else
    while (!done) {
#endif
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    }
}

/* Bytes that lie in one piece, all multiples of 16; they count towards `barrier`. What threads wrote there before, each must say so. */
__device__ inline void bulk_load(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier) : "memory");
}
__device__ inline void async_after_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* A box of a 2-D tensor into shared memory; its bytes count towards `barrier`. Parts outside the tensor arrive as zeros. */
__device__ inline void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int outer) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(inner), "r"(outer) : "memory");
}
/* The same into every block of the cluster whose bit is set, at the same place, counted by each block's own barrier. */
__device__ inline void tensor_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int outer,
                                             uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, %5}], "
                 "[%2], %3;" ::"r"(to), "l"(map), "r"(barrier), "h"(blocks), "r"(inner), "r"(outer) : "memory");
}
/* Of a 3-D tensor. */
__device__ inline void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int middle, int outer) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(inner), "r"(middle), "r"(outer) : "memory");
}
__device__ inline void tensor_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int middle, int outer,
                                             uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(to), "l"(map), "r"(barrier), "h"(blocks), "r"(inner), "r"(middle), "r"(outer)
                 : "memory");
}

/* Windows of an image (im2col mode): those from the one whose corner this is, `right` and `below` of it. */
struct Corner { int channel, wide, high, image; };
__device__ inline void windows_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, Corner at, uint16_t right, uint16_t below) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
                 "[%2], {%7, %8};" ::"r"(to), "l"(map), "r"(barrier), "r"(at.channel), "r"(at.wide), "r"(at.high), "r"(at.image),
                 "h"(right), "h"(below) : "memory");
}
__device__ inline void windows_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, Corner at, uint16_t right,
                                              uint16_t below, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(to), "l"(map), "r"(barrier), "r"(at.channel), "r"(at.wide),
                 "r"(at.high), "r"(at.image), "h"(right), "h"(below), "h"(blocks) : "memory");
}
__device__ inline void tensor_prefetch(const CUtensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

template <int COUNT> __device__ inline void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> __device__ inline void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

/* wgmma: the fence orders register writes before the next product, commit closes a group, wait<N> leaves at most N groups running */
__device__ inline void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ inline void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
}
}
#endif
