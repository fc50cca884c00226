/* SPDX-License-Identifier: Apache-2.0
 * Teams: the caller and workers of one pool take the items of a run. Each begins with its own share, the same in every run, so that its
 * caches know it, and then takes what is left of the others'. A run ends when its items are done, whoever did them: a worker that the
 * system lets wait, because other threads spin or compute there, holds up nothing that it has not begun.
 *
 * Several runs may be open at once. Worker i is thread i of any of them, and of one at a time; a run whose workers are busy elsewhere is
 * its caller's own work. Idle workers look for the next run for a moment and then sleep. A fork leaves the pool behind: the child has one
 * of its own. Where a thread cannot be had there are fewer, and the same bits later. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "../status.h"
#include "nest.h"

enum {
    MAX_THREADS = 1024,
    FEW = 4,      /* items a thread: with more, one that is left over is of no weight */
    LOOKS = 400,  /* of an idle worker before it sleeps: some 10 us, what lies between calls that follow one another */
};

typedef struct run run;
struct run {
    int64_t items;
    int32_t threads;
    pysim_item item;
    const void *context;
    _Atomic int64_t next[MAX_THREADS]; /* of each share */
    _Atomic int32_t active;            /* workers that are in it */
    int exhausted;                     /* every item is taken */
    pthread_cond_t left;               /* by the last worker */
    run *following;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    run *open;
    int32_t workers, sleeping;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
static _Atomic uint32_t runs_opened;

static int64_t share(const run *r, int64_t thread) {
    const int64_t each = r->items / r->threads, extra = r->items % r->threads;
    return thread * each + pysim_min(thread, extra);
}

static void take_items(run *r, int64_t thread) {
    for (int64_t k = 0; k < r->threads; k++) {
        const int64_t of = (thread + k) % r->threads, end = share(r, of + 1);
        for (int64_t i; (i = atomic_fetch_add_explicit(&r->next[of], 1, memory_order_relaxed)) < end;) r->item(i, thread, r->context);
    }
}

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

static run *run_for(int64_t worker) {
    run *r = pool.open;
    while (r && (r->exhausted || worker >= r->threads)) r = r->following;
    return r;
}

static void wait_for_run(void) {
    const uint32_t seen = atomic_load(&runs_opened);
    pthread_mutex_unlock(&pool.lock);
    for (int look = 0; look < LOOKS && atomic_load_explicit(&runs_opened, memory_order_relaxed) == seen; look++) pause_briefly();
    pthread_mutex_lock(&pool.lock);
    if (atomic_load(&runs_opened) != seen) return;
    pool.sleeping++;
    pthread_cond_wait(&pool.opened, &pool.lock);
    pool.sleeping--;
}

static void *work(void *number) {
    const int64_t worker = (int64_t)(intptr_t)number;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        run *r = run_for(worker);
        if (!r) {
            wait_for_run();
            continue;
        }
        r->active++;
        pthread_mutex_unlock(&pool.lock);
        take_items(r, worker);
        pthread_mutex_lock(&pool.lock);
        r->exhausted = 1;
        if (--r->active == 0) pthread_cond_signal(&r->left);
    }
    return NULL;
}

/* As many workers as a run wants, or as there can be; signals are for the program's own threads. */
static void hire(int32_t workers) {
    sigset_t all, before;
    pthread_attr_t detached;
    if (pool.workers >= workers || pthread_attr_init(&detached) != 0) return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (pthread_t thread; pool.workers < workers; pool.workers++)
        if (pthread_create(&thread, &detached, work, (void *)(intptr_t)(pool.workers + 1)) != 0) break;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

static void open_run(run *r) {
    pthread_mutex_lock(&pool.lock);
    hire(r->threads - 1);
    r->following = pool.open;
    pool.open = r;
    atomic_fetch_add(&runs_opened, 1);
    if (pool.sleeping) pthread_cond_broadcast(&pool.opened);
    pthread_mutex_unlock(&pool.lock);
}

/* Once the caller finds no item that is not taken: nobody joins any more, and those who did leave. */
static void close_run(run *r) {
    pthread_mutex_lock(&pool.lock);
    run **at = &pool.open;
    while (*at != r) at = &(*at)->following;
    *at = r->following;
    pthread_mutex_unlock(&pool.lock);
    for (int look = 0; look < LOOKS && atomic_load_explicit(&r->active, memory_order_relaxed); look++) pause_briefly();
    pthread_mutex_lock(&pool.lock);
    while (r->active) pthread_cond_wait(&r->left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

void pysim_team(int64_t items, int32_t threads, pysim_item item, const void *context) {
    if (pysim_min(threads, items) <= 1) {
        for (int64_t i = 0; i < items; i++) item(i, 0, context);
        return;
    }
    run r; /* of its shares those that it has are set */
    r.items = items, r.threads = (int32_t)pysim_min(threads, items), r.item = item, r.context = context;
    r.exhausted = 0;
    atomic_init(&r.active, 0);
    pthread_cond_init(&r.left, NULL);
    for (int32_t i = 0; i < r.threads; i++) atomic_init(&r.next[i], share(&r, i));
    open_run(&r);
    take_items(&r, 0);
    close_run(&r);
    pthread_cond_destroy(&r.left);
}

static void before_fork(void) { pthread_mutex_lock(&pool.lock); }
static void after_fork(void) { pthread_mutex_unlock(&pool.lock); }
static void in_child(void) {
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.opened, NULL);
    pool.open = NULL;
    pool.workers = pool.sleeping = 0;
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, after_fork, in_child); }

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
