/* SPDX-License-Identifier: Apache-2.0
 * Hopper's instructions without CUDA C++ equivalents, one function each: mbarriers, the tensor memory accelerator (TMA), clusters, setmaxnreg,
 * wgmma's fences. PTX ISA 8.0, sections "mbarrier", "cp.async.bulk.tensor", "barrier.cluster", "setmaxnreg". */
#ifndef PYSIM_CUDA_HOPPER_CUH
#define PYSIM_CUDA_HOPPER_CUH
#include <cuda.h>
#include <stdint.h>

#include "core/ptx.cuh"

namespace pysim {
namespace hopper {

/* mbarriers: a phase completes after `count` arrivals and all expected bytes; barrier_wait names the parity of the phase that must have completed. */
__device__ inline void barrier_init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_end(uint32_t barrier) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory"); }
__device__ inline void barrier_arrive_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Releases memory that a copy will refill. Call it only after every value read from that memory has been used, or waited for (wgmma.wait_group): the
 * arrival does not order earlier loads before the copy, which is asynchronous. ptxas may also sink register-only instructions below the arrival, so at
 * least one use of the last loaded value must be kept above it. */
__device__ inline void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives at the same barrier of block `rank` of the cluster. Not .release.cluster, which compiles to a membar (a k-iteration of 64x64x64 then took
 * 0.66 us instead of 0.22 on an H200): only wgmma's reads must precede it, and they were waited for. */
__device__ inline void barrier_arrive_at(uint32_t barrier, int rank) {
    asm volatile("{\n.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}
/* The address of the same place in the shared memory of block `rank`; store_at() stores 16 bytes there. */
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
#ifdef PYSIM_CUDA_BOUNDED_WAITS /* turns an endless wait into an error */
    for (int spins = 0; !done; spins++) {
        if (spins > 1 << 22) asm volatile("trap;");
#else
    while (!done) {
#endif
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    }
}

/* Copies contiguous bytes; addresses and size are multiples of 16; they count towards `barrier`. Threads that wrote to the destination before must have
 * called async_after_writes(). */
__device__ inline void bulk_load(uint32_t to, const void *from, int bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(barrier)
                 : "memory");
}
__device__ inline void async_after_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Loads a box of a 2-D tensor into shared memory; its bytes count towards `barrier`. Elements out of bounds are zeros. */
__device__ inline void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int outer) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(inner), "r"(outer)
                 : "memory");
}
/* Multicasts it to the blocks of the mask, at the same address; each block's own barrier counts the bytes. */
__device__ inline void tensor_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int outer, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%4, %5}], "
                 "[%2], %3;" ::"r"(to),
                 "l"(map), "r"(barrier), "h"(blocks), "r"(inner), "r"(outer)
                 : "memory");
}
/* The same for a 3-D tensor. */
__device__ inline void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int middle, int outer) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(inner), "r"(middle), "r"(outer)
                 : "memory");
}
__device__ inline void tensor_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int inner, int middle, int outer,
                                             uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
                 "l"(map), "r"(barrier), "h"(blocks), "r"(inner), "r"(middle), "r"(outer)
                 : "memory");
}

/* im2col mode: loads the windows from the one with corner `at` on, at the tap `right` and `below` of their corners. */
struct Corner {
    int channel, wide, high, image;
};
__device__ inline void windows_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, Corner at, uint16_t right, uint16_t below) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
                 "[%2], {%7, %8};" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at.channel), "r"(at.wide), "r"(at.high), "r"(at.image), "h"(right), "h"(below)
                 : "memory");
}
__device__ inline void windows_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, Corner at, uint16_t right,
                                              uint16_t below, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4, %5, %6}], [%2], {%7, %8}, %9;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at.channel), "r"(at.wide), "r"(at.high), "r"(at.image), "h"(right), "h"(below), "h"(blocks)
                 : "memory");
}
/* The same of volumes: the corner lies in slice `deep`, and the tap `behind` it. */
__device__ inline void volumes_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, Corner at, int deep, uint16_t right,
                                    uint16_t below, uint16_t behind) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
                 "[%2], {%8, %9, %10};" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at.channel), "r"(at.wide), "r"(at.high), "r"(deep), "r"(at.image), "h"(right), "h"(below),
                 "h"(behind)
                 : "memory");
}
__device__ inline void volumes_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, Corner at, int deep, uint16_t right,
                                              uint16_t below, uint16_t behind, uint16_t blocks) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10}, %11;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at.channel), "r"(at.wide), "r"(at.high), "r"(deep), "r"(at.image), "h"(right), "h"(below),
                 "h"(behind), "h"(blocks)
                 : "memory");
}
__device__ inline void tensor_prefetch(const CUtensorMap *map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

__device__ inline int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline void cluster_sync() { asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory"); }
/* The same, but of earlier writes it orders only mbarriers whose thread called barrier_init_done(). */
__device__ inline void cluster_sync_initialized() {
    asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

template <int COUNT> __device__ inline void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> __device__ inline void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }

/* wgmma: the fence orders register accesses before the next product, commit closes a group, wait<N> waits until at most N groups are pending */
__device__ inline void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void mma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ inline void mma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
}
}
#endif
