/* SPDX-License-Identifier: Apache-2.0
 * Stands in for CUDA's header of this name: nvcuda::wmma for 16 x 16 x 16 products of f16. Lane l holds elements 8 l to 8 l + 7 of each
 * matrix, counted along its rows; kernels must not rely on that. */
#ifndef PYSIM_CUDA_EMULATED_MMA_H
#define PYSIM_CUDA_EMULATED_MMA_H
#include "cuda_fp16.h"

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };

template <class Use, int M, int N, int K, class T, class Layout = void> struct fragment {
    static_assert(M == 16 && N == 16 && K == 16, "16 x 16 x 16");
    enum { num_elements = 8 };
    T x[num_elements];
};
inline int place(int e, int pitch, bool rows) {
    const int at = pysim::emulated::lane() * 8 + e;
    return rows ? at / 16 * pitch + at % 16 : at % 16 * pitch + at / 16;
}

template <class F, class T> void fill_fragment(F &f, T value) {
    for (auto &x : f.x) x = value;
}
template <class Use, class T, class Layout> void load_matrix_sync(fragment<Use, 16, 16, 16, T, Layout> &f, const T *from, unsigned pitch) {
    __syncwarp();
    for (int e = 0; e < 8; e++) f.x[e] = from[place(e, (int)pitch, std::is_same<Layout, row_major>::value)];
}
template <class T> void store_matrix_sync(T *to, const fragment<accumulator, 16, 16, 16, T> &f, unsigned pitch, layout_t layout) {
    for (int e = 0; e < 8; e++) to[place(e, (int)pitch, layout == mem_row_major)] = f.x[e];
    __syncwarp();
}
/* Accumulates in f32 and rounds each result once. */
template <class Acc, class A, class B, class La, class Lb>
void mma_sync(fragment<accumulator, 16, 16, 16, Acc> &d, const fragment<matrix_a, 16, 16, 16, A, La> &a,
              const fragment<matrix_b, 16, 16, 16, B, Lb> &b, const fragment<accumulator, 16, 16, 16, Acc> &c) {
    struct {
        A a[8];
        B b[8];
    } gift;
    memcpy(gift.a, a.x, sizeof gift.a), memcpy(gift.b, b.x, sizeof gift.b);
    pysim::emulated::exchange(0xffffffffu, gift, [&](auto given) {
        const int lane = pysim::emulated::lane();
        float sum[8];
        for (int e = 0; e < 8; e++) sum[e] = c.x[e];
        for (int k = 0; k < 16; k++) {
            const float left = given(lane / 2 * 2 + k / 8).a[k % 8];
            const auto right = given(2 * k + lane % 2);
            for (int e = 0; e < 8; e++) sum[e] += left * (float)right.b[e];
        }
        for (int e = 0; e < 8; e++) d.x[e] = Acc(sum[e]);
    });
}
}
#endif
