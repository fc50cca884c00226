/* SPDX-License-Identifier: Apache-2.0
 * Teams: the caller and workers of one pool take the items of a run. Each begins with its own share, the same in every run, so that its
 * caches know it, and then takes what is left of the others'. A run ends when its items are done, whoever did them: a worker that the
 * system lets wait, because other threads spin or compute there, holds up nothing that it has not begun.
 *
 * Several runs may be open at once. Worker i is thread i of any of them, and of one at a time; a run whose workers are busy elsewhere is
 * its caller's own work. A run is offered to each worker in a place of the worker's own, which it watches for a moment before it sleeps:
 * nothing is locked on the way, since sixteen threads that wait for one lock take longer than a layer does. A fork leaves the pool behind:
 * the child has one of its own. Where a thread cannot be had there are fewer, and the same bits later.
 *
 * Workers keep off the caller's CPU and off each other's (Linux). Otherwise the system wakes a worker on its caller's CPU where it takes an
 * idle CPU for a busy one, as in a virtual machine after a pause, and leaves both there for longer than a layer takes: on a Zen 5 with two
 * CPUs two threads then took as long as one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "../status.h"
#include "nest.h"

enum {
    MAX_THREADS = 1024,
    FEW = 4,             /* items a thread: with more, one that is left over is of no weight */
    LINE = 64,           /* bytes: what one thread writes shares none with another's */
    WATCH_NS = 200000,   /* before who waits sleeps: longer than what lies between the layers of a network; waking takes 5 to 50 us */
    PAUSES = 32,         /* between looks at the time */
};

typedef struct {
    int64_t items;
    int32_t threads;
    pysim_item item;
    const void *context;
    _Atomic int32_t pending; /* the caller, and every worker that was offered the run and has not left it */
    struct {
        _Alignas(LINE) _Atomic int64_t next;
    } shares[MAX_THREADS];
} run;

/* What a worker is offered: nothing, a run, or nothing while it is in one. */
#define IDLE ((uintptr_t)0)
#define BUSY ((uintptr_t)1)

static struct {
    _Alignas(LINE) _Atomic uintptr_t offer;
    _Atomic bool asleep;
    _Atomic int32_t cpu; /* that it was seen on last; -1 where nobody can say */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t offered;
} workers[MAX_THREADS]; /* the first is nobody: thread 0 is the caller */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;         /* a run, whose caller sleeps */
    _Atomic int32_t hired, callers_asleep;
#ifdef __linux__
    cpu_set_t cpus; /* that the program had when it loaded the library */
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

/* Under pool.lock. Gives each worker CPUs of its own out of those that the caller may use, without the caller's: as many as there are for
 * each, so that the system can move a worker away from other programs. Where there are fewer than threads, all stay as they are. */
static void place_workers(int32_t caller) {
#ifdef __linux__
    cpu_set_t allowed, own;
    if (caller < 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    const int32_t hired = pool.hired;
    if (CPU_COUNT(&allowed) <= hired) allowed = pool.cpus; /* a caller that keeps to few CPUs does not mean its workers */
    const int32_t each = (CPU_COUNT(&allowed) - (CPU_ISSET(caller, &allowed) != 0)) / pysim_max(hired, 1);
    int32_t cpu = caller;
    for (int32_t i = 1; i <= hired && each > 0; i++) {
        CPU_ZERO(&own);
        while (CPU_COUNT(&own) < each)
            if (CPU_ISSET(cpu = (cpu + 1) % CPU_SETSIZE, &allowed) && cpu != caller) CPU_SET(cpu, &own);
        pthread_setaffinity_np(workers[i].thread, sizeof own, &own);
        atomic_store(&workers[i].cpu, -1); /* until it runs there */
    }
#else
    (void)caller;
#endif
}

/* Lets others have this CPU, who may be those that are waited for. */
static void pause_briefly(void) {
    for (int i = 0; i < PAUSES; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#else
        __asm__ volatile("" ::: "memory");
#endif
    }
    sched_yield();
}

/* A run that worker `self` is offered. */
static run *await_offer(int64_t self) {
    _Atomic uintptr_t *offer = &workers[self].offer;
    const int64_t end = nanoseconds() + WATCH_NS;
    while (atomic_load(offer) == IDLE && nanoseconds() < end) pause_briefly();
    if (atomic_load(offer) == IDLE) {
        atomic_store(&workers[self].cpu, current_cpu());
        pthread_mutex_lock(&workers[self].lock);
        atomic_store(&workers[self].asleep, true);
        while (atomic_load(offer) == IDLE) pthread_cond_wait(&workers[self].offered, &workers[self].lock);
        atomic_store(&workers[self].asleep, false);
        pthread_mutex_unlock(&workers[self].lock);
    }
    return (run *)atomic_load(offer); /* or nothing, if it was withdrawn meanwhile */
}

/* Worker `of` and those below it in a binary tree. Who is offered the run and awake, or waked, wakes those below himself. */
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

/* So many of a run's pending leave it; the run may be gone after. */
static bool leave(run *r, int32_t leaving) {
    return atomic_fetch_sub(&r->pending, leaving) == leaving;
}

static void *work(void *number) {
    const int64_t self = (int64_t)(intptr_t)number;
    for (;;) {
        run *r = await_offer(self);
        uintptr_t offered = (uintptr_t)r;
        if (!r || !atomic_compare_exchange_strong(&workers[self].offer, &offered, BUSY)) continue;
        wake(r, 2 * self + 1);
        wake(r, 2 * self + 2);
        atomic_store(&workers[self].cpu, current_cpu());
        take_items(r, self);
        atomic_store(&workers[self].offer, IDLE); /* before the caller goes on, whose next run is for the same workers */
        if (leave(r, 1) && atomic_load(&pool.callers_asleep)) {
            pthread_mutex_lock(&pool.lock);
            pthread_cond_broadcast(&pool.ended);
            pthread_mutex_unlock(&pool.lock);
        }
    }
    return NULL;
}

/* As many workers as a run wants, or as there can be; signals are for the program's own threads. */
static void hire(int32_t wanted) {
    sigset_t all, before;
    pthread_attr_t detached;
    if (atomic_load(&pool.hired) >= wanted || pthread_attr_init(&detached) != 0) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_mutex_lock(&pool.lock);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int32_t next = pool.hired + 1; next <= wanted; atomic_store(&pool.hired, next++)) {
        pthread_mutex_init(&workers[next].lock, NULL);
        pthread_cond_init(&workers[next].offered, NULL);
        atomic_init(&workers[next].cpu, -1);
        if (pthread_create(&workers[next].thread, &detached, work, (void *)(intptr_t)next) != 0) break;
    }
    place_workers(current_cpu());
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&pool.lock);
    pthread_attr_destroy(&detached);
}

static void open_run(run *r) {
    hire(r->threads - 1);
    const int64_t last = pysim_min(r->threads - 1, atomic_load(&pool.hired));
    const int32_t caller = current_cpu();
    bool met = false;
    for (int64_t i = 1; i <= last; i++) met |= caller >= 0 && atomic_load(&workers[i].cpu) == caller;
    if (met && pthread_mutex_trylock(&pool.lock) == 0) { /* else somebody places them now */
        place_workers(caller);
        pthread_mutex_unlock(&pool.lock);
    }
    for (int64_t i = 1; i <= last; i++) {
        uintptr_t idle = IDLE;
        atomic_fetch_add(&r->pending, 1);
        if (!atomic_compare_exchange_strong(&workers[i].offer, &idle, (uintptr_t)r)) leave(r, 1);
    }
    wake(r, 1);
    wake(r, 2);
}

/* Once the caller finds no item that is not taken: nobody joins any more, and those who did leave. */
static void close_run(run *r) {
    int32_t leaving = 1;
    for (int64_t i = 1; i < r->threads; i++) {
        uintptr_t offered = (uintptr_t)r;
        leaving += atomic_compare_exchange_strong(&workers[i].offer, &offered, IDLE);
    }
    if (leave(r, leaving)) return;
    const int64_t end = nanoseconds() + WATCH_NS;
    while (atomic_load(&r->pending) && nanoseconds() < end) pause_briefly();
    if (!atomic_load(&r->pending)) return;
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.callers_asleep, 1);
    while (atomic_load(&r->pending)) pthread_cond_wait(&pool.ended, &pool.lock);
    atomic_fetch_sub(&pool.callers_asleep, 1);
    pthread_mutex_unlock(&pool.lock);
}

void pysim_team(int64_t items, int32_t threads, pysim_item item, const void *context) {
    if (pysim_min(threads, items) <= 1) {
        for (int64_t i = 0; i < items; i++) item(i, 0, context);
        return;
    }
    run r; /* of its shares those that it has are set */
    r.items = items, r.threads = (int32_t)pysim_min(threads, items), r.item = item, r.context = context;
    atomic_init(&r.pending, 1);
    for (int32_t i = 0; i < r.threads; i++) atomic_init(&r.shares[i].next, share(&r, i));
    open_run(&r);
    take_items(&r, 0);
    close_run(&r);
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork(void) { pthread_mutex_unlock(&pool.lock); }
static void in_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.ended, NULL);
    for (int32_t i = 1; i <= pool.hired; i++) {
        atomic_store(&workers[i].offer, IDLE);
        atomic_store(&workers[i].asleep, false);
    }
    atomic_store(&pool.hired, 0);
    atomic_store(&pool.callers_asleep, 0);
}
__attribute__((constructor)) static void prepare_pool(void) {
    pthread_atfork(before_fork, after_fork, in_child);
#ifdef __linux__
    sched_getaffinity(0, sizeof pool.cpus, &pool.cpus);
#endif
}

int64_t pysim_parts(int64_t items, int64_t threads) {
    int64_t divisor = threads, rest = items % threads;
    while (rest) {
        const int64_t next = divisor % rest;
        divisor = rest;
        rest = next;
    }
    return items < FEW * threads ? threads / divisor : 1;
}

pysim_status pysim_team_workspace(int64_t each, int32_t threads, int64_t *bytes) {
    if (threads < 1 || threads > MAX_THREADS)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "threads is %d; it must lie in 1..%d", (int)threads, MAX_THREADS);
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
