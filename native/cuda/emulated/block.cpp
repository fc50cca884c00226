/* SPDX-License-Identifier: Apache-2.0
 * Runs a kernel on the CPU, one block after another, with one fiber for each CUDA thread that waits.
 *
 * A thread runs until it reaches a barrier or ends. The last to arrive at a barrier continues; the others resume when they are scheduled. The order
 * of threads differs between blocks and launches (ascending, descending, shuffled), but is deterministic. Shared memory starts as 0xff, which is NaN.
 * These errors therefore give wrong results: a missing barrier, a missing wait for an asynchronous copy, a read of memory that was never written. A
 * barrier that some thread never reaches ends the launch, and so does an access to an inaccessible page. All memory of the device is inaccessible to a block of
 * a launch that may start early until one of its threads has waited for the launch before; then only asynchronous copies of threads that have neither waited nor
 * met one that had are found, and whatever is wrong in the block whose threads run in another order.
 *
 * Not covered: memory reordering, true concurrency of blocks and warps (threads between two barriers run one after the other, so a race shows only
 * if one of the orders gives a wrong result), and speed. */
#include "block.h"

#include <link.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "memory.h"

namespace pysim::emulated {
namespace {

enum { MOST_THREADS = 1024, MOST_SHARED = 227 * 1024, NAMED = 16 };
#ifdef PYSIM_ASAN
enum { STACK = 512 * 1024 };
#else
enum { STACK = 128 * 1024 };
#endif

struct Barrier {
    int arrived, expected;
    unsigned mask, generation;
    bool waited; /* a thread that came had waited for the previous launch */
};

struct Copy {
    char *to;
    const char *from;
    int size, bytes, group;
};

/* Where a fiber, or the scheduler, resumes. */
struct Context {
    void *at[5]; /* for __builtin_longjmp, which takes only a few instructions */
    const void *stack;
    size_t size;
    void *fake; /* AddressSanitizer's fake stack */
};

struct Fiber {
    Context context;
    bool started; /* its context can be resumed */
    int thread;   /* the CUDA thread that it runs; -1: none */
    uint3 index;
    const Barrier *barrier; /* it waits there until the barrier's generation changes */
    unsigned generation;
    bool waited; /* for the previous launch, or met a thread that had */
    std::vector<Copy> copies;
    int group;
};

Launch now;
int threads, next_thread; /* threads of the block; how many have started */
int order[MOST_THREADS];
/* warps: for whole warps; parts: for parts of warps, by their lowest lane */
Barrier named[NAMED], warps[MOST_THREADS / 32], parts[MOST_THREADS];
char warp_gifts[2][MOST_THREADS][EXCHANGED], part_gifts[MOST_THREADS][EXCHANGED];
Fiber fibers[MOST_THREADS];
Fiber *current;
Context scheduler;
char *shared_pages, *shared;
Context aborted;
char failure_text[1024];
unsigned launches;
bool launch_waited; /* a thread of the launch has waited for the previous one */

int threads_of(const Launch &launch) { return (int)(launch.threads[0] * launch.threads[1] * launch.threads[2]); }

uint3 index_of(int thread) {
    const unsigned t = (unsigned)thread, wide = now.threads[0], high = now.threads[1];
    return {t % wide, t / wide % high, t / wide / high};
}

/* ---- fibers ---- */

void switch_to(Context &from, Context &to) {
#ifdef PYSIM_ASAN
    __sanitizer_start_switch_fiber(&from.fake, to.stack, to.size);
#else
    (void)from, (void)to;
#endif
}
void arrive(Context &at) {
#ifdef PYSIM_ASAN
    __sanitizer_finish_switch_fiber(at.fake, nullptr, nullptr);
#else
    (void)at;
#endif
}

/* Functions that switch stacks are not instrumented. Before a call that does not return, AddressSanitizer would unpoison the whole stack: that costs
 * a system call per switch, and its function's own frame may overlap redzones that begin() left behind. */
#define PYSIM_SWITCHES __attribute__((noinline, no_sanitize("address")))

[[noreturn]] PYSIM_SWITCHES void jump(Context &to) { __builtin_longjmp(to.at, 1); }

PYSIM_SWITCHES void to_scheduler() {
    switch_to(current->context, scheduler);
    if (!__builtin_setjmp(current->context.at)) jump(scheduler);
    arrive(current->context);
}

/* The main loop of a fiber: runs threads one after another, each of which may wait. */
void live() {
#ifdef PYSIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.size);
#endif
    for (;;) {
        while (next_thread < threads) {
            current->thread = order[next_thread++];
            current->copies.clear();
            current->group = 0;
            threadIdx = current->index = index_of(current->thread);
            current->waited = false;
            now.call(now.arguments);
        }
        current->thread = -1;
        to_scheduler();
    }
}

[[noreturn]] PYSIM_SWITCHES void begin(Fiber &fiber) {
    fiber.started = true;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = (void *)fiber.context.stack;
    first.uc_stack.ss_size = STACK;
    first.uc_link = nullptr;
    makecontext(&first, live, 0);
    setcontext(&first);
    abort(); /* setcontext returns only where it was given nonsense */
}

PYSIM_SWITCHES void resume(Fiber &fiber) {
    threadIdx = fiber.index;
    if (!fiber.started) {
        if (!fiber.context.stack) {
            fiber.context.stack = map_pages(STACK);
            if (!fiber.context.stack) fault("no memory for the stacks of threads");
            fiber.context.size = STACK;
        }
        ASAN_UNPOISON_MEMORY_REGION(fiber.context.stack, STACK);
    }
    current = &fiber;
    switch_to(scheduler, fiber.context);
    if (!__builtin_setjmp(scheduler.at)) {
        if (fiber.started) jump(fiber.context);
        begin(fiber);
    }
    arrive(scheduler);
    current = nullptr;
}

/* ---- the block ---- */

void say(char *text, size_t size, int thread) {
    const uint3 t = index_of(thread);
    snprintf(text, size, "thread (%u,%u,%u)", t.x, t.y, t.z);
}

[[noreturn]] void stuck(int used) {
    const Fiber *waits = nullptr, *other = nullptr;
    for (int i = 0; i < used; i++)
        if (fibers[i].thread >= 0) {
            if (!waits) waits = fibers + i;
            else if (fibers[i].barrier != waits->barrier && !other) other = fibers + i;
        }
    char who[64], whom[64] = "";
    say(who, sizeof who, waits->thread);
    if (other) say(whom, sizeof whom, other->thread);
    const bool block = waits->barrier >= named && waits->barrier < named + NAMED;
    fault("%s waits for ever at %s: %d of its %d threads have come, and %s%s", who,
          block ? "a barrier of the block" : "a barrier of its warp", waits->barrier->arrived, waits->barrier->expected,
          other ? whom : "the others have left the kernel", other ? " waits at another one" : "");
}

void run_block() {
    next_thread = 0;
    int used = 0;
    while (next_thread < threads) resume(fibers[used++]);
    for (bool waiting = true, moved = true; waiting;) {
        if (!moved) stuck(used);
        waiting = moved = false;
        for (int i = 0; i < used; i++) {
            if (fibers[i].thread < 0) continue;
            waiting = true;
            if (fibers[i].barrier->generation == fibers[i].generation) continue;
            resume(fibers[i]);
            moved = true;
        }
    }
}

/* This OS thread's thread_local memory of the program or library that contains this file; __shared__ variables are there. */
struct Locals {
    char *at;
    size_t bytes;
};
int find_locals(dl_phdr_info *info, size_t, void *out) {
    bool here = false;
    size_t bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto &part = info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + part.p_vaddr, self = (uintptr_t)&find_locals;
        if (part.p_type == PT_LOAD && self >= begin && self < begin + part.p_memsz) here = true;
        if (part.p_type == PT_TLS) bytes = part.p_memsz;
    }
    if (here && info->dlpi_tls_data) *(Locals *)out = {(char *)info->dlpi_tls_data, bytes};
    return here;
}

void prepare_block(unsigned index, unsigned launch, const Locals &locals) {
    const unsigned wide = now.grid[0], high = now.grid[1];
    blockIdx = {index % wide, index / wide % high, index / wide / high};
    for (auto &barrier : named) barrier = {};
    std::fill(warps, warps + (threads + 31) / 32, Barrier{});
    std::fill(parts, parts + threads, Barrier{});
    memset(shared, 0xff, now.shared);
    if (locals.at) memset(locals.at, 0xff, locals.bytes);
    for (int i = 0; i < threads; i++) order[i] = (index + launch) % 3 == 1 ? threads - 1 - i : i;
    if ((index + launch) % 3 == 2) std::shuffle(order, order + threads, std::minstd_rand(index + 1));
}

/* ---- failures ---- */

/* Signal handler for invalid accesses; the CUDA thread does not continue. */
void on_signal(int, siginfo_t *info, void *) {
    if (!current) { /* not caused by a kernel */
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        return;
    }
    char text[256];
    describe(info->si_addr, text, sizeof text);
    fault("touched %s", text);
}

#ifdef PYSIM_ASAN
void on_death() {
    if (!current) return;
    char who[64];
    say(who, sizeof who, current->thread);
    fprintf(stderr, "emulated kernel: block (%u,%u,%u) %s\n", blockIdx.x, blockIdx.y, blockIdx.z, who);
}
#endif

void run_grid(const Locals &locals) {
    const unsigned blocks = now.grid[0] * now.grid[1] * now.grid[2], launch = launches++;
    for (unsigned i = 0; i < blocks; i++) {
        prepare_block(launch % 2 ? blocks - 1 - i : i, launch, locals);
        open_memory(now.before != BeforeWait::NOTHING);
        run_block();
    }
    if (now.before != BeforeWait::ALL && !launch_waited) /* then the next launch would not find all earlier ones ended */
        fault("the kernel may start before the previous one ends, and no thread calls wait_for_previous()");
}

/* The OS thread of a launch. */
void device(bool *done) {
    std::vector<char> signal_stack(64 * 1024);
    stack_t stack = {}, before = {};
    stack.ss_sp = signal_stack.data(), stack.ss_size = signal_stack.size();
    sigaltstack(&stack, &before);
    struct sigaction action = {}, old_segv, old_bus;
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
    Locals locals = {};
    dl_iterate_phdr(find_locals, &locals);
    if (!__builtin_setjmp(aborted.at)) {
        run_grid(locals);
        *done = true;
    } else {
        if (current) arrive(scheduler);
        for (auto &fiber : fibers) fiber.started = false, fiber.thread = -1; /* their state is lost */
    }
    current = nullptr;
    open_memory(true);
    sigaction(SIGSEGV, &old_segv, nullptr);
    sigaction(SIGBUS, &old_bus, nullptr);
    sigaltstack(&before, nullptr);
}
}

void fault(const char *format, ...) {
    char what[512], who[64] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (current) say(who, sizeof who, current->thread);
    snprintf(failure_text, sizeof failure_text, "block (%u,%u,%u)%s%s: %s", blockIdx.x, blockIdx.y, blockIdx.z, current ? " " : "", who,
             what);
    if (current) switch_to(current->context, scheduler);
    jump(aborted);
}

const char *failure() { return failure_text; }

char *dynamic_shared() { return shared; }

bool run(const Launch &launch) {
    now = launch;
    threads = threads_of(launch);
    failure_text[0] = 0;
    launch_waited = false;
    if (!shared_pages) {
        shared_pages = map_pages(MOST_SHARED + 1024);
        if (!shared_pages) return snprintf(failure_text, sizeof failure_text, "no memory"), false;
        for (auto &fiber : fibers) fiber.thread = -1;
#ifdef PYSIM_ASAN
        __sanitizer_set_death_callback(on_death);
#endif
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), all = (MOST_SHARED + 1024 + page - 1) / page * page;
    shared = shared_pages + all - (launch.shared + 127) / 128 * 128;
    ASAN_POISON_MEMORY_REGION(shared_pages, all);
    ASAN_UNPOISON_MEMORY_REGION(shared, launch.shared);
    blockDim = {launch.threads[0], launch.threads[1], launch.threads[2]};
    gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
    bool done = false;
    std::thread(device, &done).join();
    return done;
}

/* ---- barriers and exchanges ---- */

namespace {
void wait(Barrier &barrier, int expected) {
    barrier.expected = expected;
    barrier.waited |= current->waited;
    if (++barrier.arrived == expected) {
        barrier.arrived = 0;
        barrier.generation++;
    } else {
        current->barrier = &barrier;
        current->generation = barrier.generation;
        to_scheduler();
    }
    current->waited |= barrier.waited;
}

/* Removes lanes that do not exist from `mask`; returns the barrier of the rest. */
Barrier &lanes_barrier(unsigned &mask) {
    const int first = current->thread / 32 * 32, lanes = std::min(threads - first, 32);
    if (!(mask >> lane() & 1)) fault("a lane that is not in the mask 0x%x", mask);
    const unsigned there = 0xffffffffu >> (32 - lanes);
    mask &= there;
    return mask == there ? warps[first / 32] : parts[first + __builtin_ctz(mask)];
}

void wait_for_lanes(Barrier &barrier, unsigned mask) {
    if (barrier.arrived && barrier.mask != mask) fault("lanes of a warp wait for 0x%x and for 0x%x", mask, barrier.mask);
    barrier.mask = mask;
    wait(barrier, __builtin_popcount(mask));
}
}

int lane() { return current->thread % 32; }

void wait_for_previous() {
    current->waited = launch_waited = true;
    open_memory(true);
}

void wait_block(int id, int count) {
    Barrier &barrier = named[id];
    const int expected = count ? count : threads;
    if (barrier.arrived && barrier.expected != expected)
        fault("barrier %d is of %d threads here and of %d elsewhere", id, expected, barrier.expected);
    if (count % 32) fault("barrier %d is of %d threads; expected a multiple of 32", id, count);
    wait(barrier, expected);
}

void wait_warp(unsigned mask) {
    Barrier &barrier = lanes_barrier(mask);
    wait_for_lanes(barrier, mask);
}

/* Whole warps alternate between two buffers, since one lane can be at most one exchange ahead of another. */
const char *give(unsigned &mask, const void *gift, int bytes) {
    Barrier &barrier = lanes_barrier(mask);
    const bool whole = &barrier >= warps && &barrier < warps + MOST_THREADS / 32;
    auto &gifts = whole ? warp_gifts[barrier.generation % 2] : part_gifts;
    memcpy(gifts[current->thread], gift, (size_t)bytes);
    wait_for_lanes(barrier, mask);
    return gifts[current->thread / 32 * 32];
}

/* Parts of warps may overlap in any way, so they wait until all lanes have read the values. */
void taken(unsigned mask) {
    Barrier &barrier = lanes_barrier(mask);
    if (&barrier >= parts && &barrier < parts + MOST_THREADS) wait_for_lanes(barrier, mask);
}

/* ---- asynchronous copies ---- */

void copy_async(void *to, const void *from, int size, int bytes) {
    if ((size != 4 && size != 8 && size != 16) || bytes < 0 || bytes > size)
        fault("an asynchronous copy of %d bytes, %d of them from memory", size, bytes);
    if ((uintptr_t)to % (unsigned)size || (uintptr_t)from % (unsigned)size)
        fault("an asynchronous copy of %d bytes from %p to %p, which are not aligned to it", size, from, to);
    if (now.before == BeforeWait::NOTHING && !current->waited) fault("an asynchronous copy before wait_for_previous()");
    memset(to, 0xff, (size_t)size);
    current->copies.push_back({(char *)to, (const char *)from, size, bytes, current->group});
}

void commit_async() { current->group++; }

void wait_async(int left) {
    auto &copies = current->copies;
    size_t done = 0;
    while (done < copies.size() && copies[done].group < current->group - left) {
        const Copy &copy = copies[done++];
        memcpy(copy.to, copy.from, (size_t)copy.bytes);
        memset(copy.to + copy.bytes, 0, (size_t)(copy.size - copy.bytes));
    }
    copies.erase(copies.begin(), copies.begin() + (long)done);
}
}
