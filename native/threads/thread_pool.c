/* SPDX-License-Identifier: Apache-2.0
 * A thread pool. A run is a number of independent items. The calling thread is thread 0; workers are threads 1, 2, ... Each thread first takes
 * its own share of the items, the same share in every run, so that its caches stay warm, and then items that are left in other threads' shares.
 * A run ends when its items are done, whoever did them: a worker that the system does not schedule delays nothing that it has not begun.
 *
 * Several runs may be open at once. Worker i is thread i of every run, and works on one run at a time; if its workers are busy elsewhere, a run
 * is done by its caller alone. Each worker has an offer slot of its own; it spins on the slot for a moment before it sleeps. There is no
 * lock on that path: sixteen threads waiting for one lock take longer than a layer. After fork() the child starts a new pool. If a thread
 * cannot be created, the run has fewer threads and the same bits.
 *
 * Workers stay off the caller's CPU and off each other's (Linux). Otherwise the system may wake a worker on its caller's CPU while another CPU
 * is idle, as in a virtual machine after a pause, and leave both there for longer than a layer takes: on a Zen 5 with two CPUs, two threads
 * then took as long as one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "abi/status.h"
#include "algorithms/nest.h"

enum {
    MAX_THREADS = 1024,
    MAX_UNEVEN_ITEMS = 4, /* with this many items per thread, an uneven remainder hardly matters */
    LINE = 64,            /* bytes of a cache line: no two threads write to the same line */
    /* spin time before sleeping: longer than the time between two layers of a network; waking a thread takes 5 to 50 us */
    SPIN_NS = 200000,
    /* pause instructions, 25 to 45 ns each, between two reads of the clock, and between two calls of sched_yield: those take 0.7 us in a
     * virtual machine, and whoever waits sees nothing meanwhile */
    PAUSES = 32,
    YIELD_PAUSES = 256,
};

typedef struct {
    int64_t items;
    int32_t threads;
    pysim_item item;
    const void *context;
    _Atomic int32_t pending; /* the caller, and every worker that holds an offer of this run or works on it */
    struct {
        _Alignas(LINE) _Atomic int64_t next;
    } shares[MAX_THREADS];
} run;

/* Values of an offer slot besides the address of a run: no offer; working on a run. */
#define IDLE ((uintptr_t)0)
#define BUSY ((uintptr_t)1)

static struct {
    _Alignas(LINE) _Atomic uintptr_t offer;
    _Atomic bool asleep;
    _Atomic int32_t cpu; /* CPU on which it was seen last; -1: unknown */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t offered;
} workers[MAX_THREADS]; /* entry 0 is unused: thread 0 is the caller */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended; /* signals the end of a run to sleeping callers */
    _Atomic int32_t started, callers_asleep;
#ifdef __linux__
    cpu_set_t cpus; /* the program's CPUs when it loaded the library */
    cpu_set_t own;  /* those that are its alone, among other processes; or none */
#endif
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

static int64_t share(const run *r, int64_t thread) {
    const int64_t each = r->items / r->threads, extra = r->items % r->threads;
    return thread * each + pysim_min(thread, extra);
}

static void take_items(run *r, int64_t thread) {
    for (int64_t k = 0; k < r->threads; k++) {
        const int64_t of = (thread + k) % r->threads, end = share(r, of + 1);
        _Atomic int64_t *next = &r->shares[of].next;
        for (int64_t i; atomic_load_explicit(next, memory_order_relaxed) < end;)
            if ((i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed)) < end) r->item(i, thread, r->context);
    }
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int32_t current_cpu(void) {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

/* Requires pool.lock. Pins each worker to its own CPUs among those that the caller may use, without the caller's CPU; each worker gets
 * several if there are enough, so that the system can move it away from other programs. The program's own CPUs are preferred if they are
 * enough. If there are fewer CPUs than threads, nothing is pinned. */
static void pin_workers(int32_t caller) {
#ifdef __linux__
    cpu_set_t allowed, own;
    if (caller < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    const int32_t started = pool.started;
    if (CPU_COUNT(&allowed) <= started) allowed = pool.cpus; /* a caller pinned to few CPUs does not restrict its workers */
    CPU_AND(&own, &allowed, &pool.own);
    if (CPU_COUNT(&own) - (CPU_ISSET(caller, &own) != 0) >= started) allowed = own;
    const int32_t each = (CPU_COUNT(&allowed) - (CPU_ISSET(caller, &allowed) != 0)) / pysim_max(started, 1);
    int32_t cpu = caller;
    for (int32_t i = 1; i <= started && each > 0; i++) {
        CPU_ZERO(&own);
        while (CPU_COUNT(&own) < each)
            if (CPU_ISSET(cpu = (cpu + 1) % CPU_SETSIZE, &allowed) && cpu != caller) CPU_SET(cpu, &own);
        pthread_setaffinity_np(workers[i].thread, sizeof own, &own);
        atomic_store(&workers[i].cpu, each == 1 ? cpu : -1); /* of several CPUs, unknown until it runs there */
    }
#else
    (void)caller;
#endif
}

/* One turn of waiting; now and then it yields the CPU, perhaps to the very thread that is waited for. */
static void pause_briefly(int64_t turn) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
    if (turn % YIELD_PAUSES == 0) sched_yield();
}

/* Waits while a condition holds, but not longer than SPIN_NS. */
#define SPIN_WHILE(condition)                                                                                           \
    do {                                                                                                                \
        const int64_t spin_end = nanoseconds() + SPIN_NS;                                                               \
        for (int64_t turn = 1; (condition) && (turn % PAUSES || nanoseconds() < spin_end); turn++) pause_briefly(turn); \
    } while (0)

/* Waits for an offer to worker `self` and returns the run. */
static run *await_offer(int64_t self) {
    _Atomic uintptr_t *offer = &workers[self].offer;
    SPIN_WHILE(atomic_load(offer) == IDLE);
    if (atomic_load(offer) == IDLE) {
        atomic_store(&workers[self].cpu, current_cpu());
        pthread_mutex_lock(&workers[self].lock);
        atomic_store(&workers[self].asleep, true);
        while (atomic_load(offer) == IDLE) pthread_cond_wait(&workers[self].offered, &workers[self].lock);
        atomic_store(&workers[self].asleep, false);
        pthread_mutex_unlock(&workers[self].lock);
    }
    return (run *)atomic_load(offer); /* NULL if the offer was withdrawn meanwhile */
}

/* Wakes worker `of`. Workers form a binary tree: a worker that holds the offer and is awake, or is woken, wakes its own children. */
static void wake(const run *r, int64_t of) {
    if (of >= r->threads) return;
    if (atomic_load(&workers[of].offer) != (uintptr_t)r) {
        wake(r, 2 * of + 1);
        wake(r, 2 * of + 2);
    } else if (atomic_load(&workers[of].asleep)) {
        pthread_mutex_lock(&workers[of].lock);
        pthread_cond_signal(&workers[of].offered);
        pthread_mutex_unlock(&workers[of].lock);
    }
}

/* Removes `leaving` from the run's pending count; true if none is left. The run may no longer exist afterwards. */
static bool release(run *r, int32_t leaving) { return atomic_fetch_sub(&r->pending, leaving) == leaving; }

static void *worker_loop(void *number) {
    const int64_t self = (int64_t)(intptr_t)number;
    for (;;) {
        run *r = await_offer(self);
        uintptr_t offered = (uintptr_t)r;
        if (!r || !atomic_compare_exchange_strong(&workers[self].offer, &offered, BUSY)) continue;
        wake(r, 2 * self + 1);
        wake(r, 2 * self + 2);
        atomic_store(&workers[self].cpu, current_cpu());
        take_items(r, self);
        atomic_store(&workers[self].offer, IDLE); /* before the caller continues: its next run wants the same workers */
        if (release(r, 1) && atomic_load(&pool.callers_asleep)) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_broadcast(&pool.ended);
            pthread_mutex_unlock(&pool.lock);
        }
    }
    return NULL;
}

/* Starts workers until there are `wanted`, or as many as the system allows. Signals are blocked in them: they are for the program's own
 * threads. */
static void start_workers(int32_t wanted) {
    sigset_t all, before;
    pthread_attr_t detached;
    if (atomic_load(&pool.started) >= wanted || pthread_attr_init(&detached) != 0) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_mutex_lock(&pool.lock);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int32_t next = pool.started + 1; next <= wanted; atomic_store(&pool.started, next++)) {
        pthread_mutex_init(&workers[next].lock, NULL);
        pthread_cond_init(&workers[next].offered, NULL);
        atomic_init(&workers[next].cpu, -1);
        if (pthread_create(&workers[next].thread, &detached, worker_loop, (void *)(intptr_t)next) != 0) break;
    }
    pin_workers(current_cpu());
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&pool.lock);
    pthread_attr_destroy(&detached);
}

static void open_run(run *r) {
    start_workers(r->threads - 1);
    const int64_t last = pysim_min(r->threads - 1, atomic_load(&pool.started));
    const int32_t caller = current_cpu();
    bool collides = false;
    for (int64_t i = 1; i <= last; i++) collides |= caller >= 0 && atomic_load(&workers[i].cpu) == caller;
    if (collides && pthread_mutex_trylock(&pool.lock) == 0) { /* if the lock is taken, another thread is pinning them */
        pin_workers(caller);
        pthread_mutex_unlock(&pool.lock);
    }
    for (int64_t i = 1; i <= last; i++) {
        uintptr_t idle = IDLE;
        atomic_fetch_add(&r->pending, 1);
        if (!atomic_compare_exchange_strong(&workers[i].offer, &idle, (uintptr_t)r)) release(r, 1);
    }
    wake(r, 1);
    wake(r, 2);
}

/* Called when all items are taken: withdraws the offers that nobody accepted and waits for the workers that did. */
static void close_run(run *r) {
    int32_t leaving = 1;
    for (int64_t i = 1; i < r->threads; i++) {
        uintptr_t offered = (uintptr_t)r;
        leaving += atomic_compare_exchange_strong(&workers[i].offer, &offered, IDLE);
    }
    if (release(r, leaving)) return;
    SPIN_WHILE(atomic_load(&r->pending));
    if (!atomic_load(&r->pending)) return;
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.callers_asleep, 1);
    while (atomic_load(&r->pending)) pthread_cond_wait(&pool.ended, &pool.lock);
    atomic_fetch_sub(&pool.callers_asleep, 1);
    pthread_mutex_unlock(&pool.lock);
}

void pysim_parallel_for(int64_t items, int32_t threads, pysim_item item, const void *context) {
    if (pysim_min(threads, items) <= 1) {
        for (int64_t i = 0; i < items; i++) item(i, 0, context);
        return;
    }
    run r; /* only the shares in use are initialised */
    r.items = items, r.threads = (int32_t)pysim_min(threads, items), r.item = item, r.context = context;
    atomic_init(&r.pending, 1);
    for (int32_t i = 0; i < r.threads; i++) atomic_init(&r.shares[i].next, share(&r, i));
    open_run(&r);
    take_items(&r, 0);
    close_run(&r);
}

void pysim_own_cpus(const int32_t *cpus, int32_t count) {
#ifdef __linux__
    pthread_mutex_lock(&pool.lock);
    CPU_ZERO(&pool.own);
    for (int32_t i = 0; i < count; i++)
        if (cpus[i] >= 0 && cpus[i] < CPU_SETSIZE) CPU_SET(cpus[i], &pool.own);
    pthread_mutex_unlock(&pool.lock);
#else
    (void)cpus, (void)count;
#endif
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork(void) { pthread_mutex_unlock(&pool.lock); }
static void in_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.ended, NULL);
    for (int32_t i = 1; i <= pool.started; i++) {
        atomic_store(&workers[i].offer, IDLE);
        atomic_store(&workers[i].asleep, false);
    }
    atomic_store(&pool.started, 0);
    atomic_store(&pool.callers_asleep, 0);
}
__attribute__((constructor)) static void create_pool(void) {
    pthread_atfork(before_fork, after_fork, in_child);
#ifdef __linux__
    sched_getaffinity(0, sizeof pool.cpus, &pool.cpus);
#endif
}

int64_t pysim_split_count(int64_t items, int64_t threads) {
    int64_t divisor = threads, rest = items % threads;
    while (rest) {
        const int64_t next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    return items < MAX_UNEVEN_ITEMS * threads ? threads / divisor : 1;
}

pysim_status pysim_threads_workspace(int64_t each, int32_t threads, int64_t *bytes) {
    if (threads < 1 || threads > MAX_THREADS)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "threads is %d; expected 1..%d", (int)threads, MAX_THREADS);
    if (__builtin_mul_overflow(each, threads, bytes)) return pysim_fail(PYSIM_OVERFLOW, "the workspace exceeds int64 bytes");
    return PYSIM_OK;
}

void pysim_add_profile(pysim_profile *profile, const pysim_profile *own) {
    static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;
    if (!profile) return;
    pthread_mutex_lock(&adding);
    profile->pack_seconds += own->pack_seconds;
    profile->kernel_seconds += own->kernel_seconds;
    profile->packed_tiles += own->packed_tiles;
    profile->kernel_calls += own->kernel_calls;
    pthread_mutex_unlock(&adding);
}
