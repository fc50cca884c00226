/* SPDX-License-Identifier: Apache-2.0
 * The scheduler's interface (block.cpp): launches, barriers, exchanges between lanes, asynchronous copies. */
#ifndef PYSIM_CUDA_EMULATED_BLOCK_H
#define PYSIM_CUDA_EMULATED_BLOCK_H
#include <cstddef>

namespace pysim::emulated {

/* What threads may touch before they, or threads that they met at a barrier, have called wait_for_previous() (found as far as block.cpp says). */
enum class BeforeWait {
    ALL,     /* the kernel starts when the previous one has ended, and need not wait */
    NOTHING, /* it may start earlier */
    ELDER /* it may start earlier; what it touches was written by earlier launches than the previous one (not checked, but that a thread waits) */
};

struct Launch {
    void (*call)(void *); /* call(arguments) is one thread's work */
    void *arguments;
    unsigned grid[3], threads[3];
    size_t shared; /* bytes of dynamic shared memory */
    BeforeWait before;
};
/* Runs all threads of all blocks. False on an error, which failure() describes. */
bool run(const Launch &launch);
const char *failure();

char *dynamic_shared(); /* of the running block; ends less than 128 bytes before an inaccessible page */

/* Ends the launch with this message and the position of the thread. */
[[noreturn]] __attribute__((format(printf, 1, 2))) void fault(const char *format, ...);

void wait_block(int id, int threads); /* bar.sync; threads = 0: all of the block */
void wait_warp(unsigned mask);        /* bar.warp.sync */
int lane();
void wait_for_previous(); /* griddepcontrol.wait */

/* Calls use(given) in each lane of `mask`. given(l) is lane l's value, or 0xff bytes if l is not in `mask` or does not exist. */
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

/* cp.async: writes `size` bytes of shared memory, the first `bytes` from `from`, the rest zeros. The destination is 0xff, and the source is not read,
 * until a wait completes the copy's group. */
void copy_async(void *to, const void *from, int size, int bytes);
void commit_async();
void wait_async(int left);
}
#endif
