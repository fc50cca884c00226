/* SPDX-License-Identifier: Apache-2.0
 * What the emulated CUDA language needs of its scheduler (block.cpp): launches, barriers, exchanges between lanes, asynchronous copies. */
#ifndef PYSIM_CUDA_EMULATED_BLOCK_H
#define PYSIM_CUDA_EMULATED_BLOCK_H
#include <cstddef>

namespace pysim {
namespace emulated {

struct Launch {
    void (*call)(void *); /* one thread's work: call(arguments) */
    void *arguments;
    unsigned grid[3], threads[3];
    size_t shared; /* bytes of dynamic shared memory */
};
/* Runs the threads of each block, and returns true when all are done; false: failure() says what was wrong, and where. */
bool run(const Launch &launch);
const char *failure();

char *dynamic_shared(); /* of the running block; it ends at an inaccessible page, or less than 128 bytes before it */

/* Ends the launch with this message and its place. */
[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char *format, ...);

void wait_block(int id, int threads); /* bar.sync; threads 0: all of the block */
void wait_warp(unsigned mask);        /* bar.warp.sync */
int lane();

/* use(given) for each lane of `mask`, where given(l) is what lane l gave: 0xff where it is not in `mask`, or does not exist. */
enum { EXCHANGED = 64 };
const char *give(unsigned &mask, const void *gift, int bytes);
void taken(unsigned mask);
template <class T, class Use> void exchange(unsigned mask, const T &gift, Use use) {
    static_assert(sizeof(T) <= EXCHANGED, "a lane's gift");
    const char *const gifts = give(mask, &gift, sizeof gift);
    use([=](int lane) {
        T value;
        if (mask >> lane & 1) __builtin_memcpy((void *)&value, gifts + EXCHANGED * lane, sizeof value);
        else __builtin_memset((void *)&value, 0xff, sizeof value);
        return value;
    });
    taken(mask);
}

/* cp.async: `size` bytes of shared memory, the first `bytes` from `from` and the rest zeros. They are 0xff until a wait has let the
 * copy's group happen, and come from memory no sooner. */
void copy_async(void *to, const void *from, int size, int bytes);
void commit_async();
void wait_async(int left);
}
}
#endif
