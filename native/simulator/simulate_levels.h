/* SPDX-License-Identifier: Apache-2.0
 * Exact simulation of a cache hierarchy: which line of which level every access touches, and what it moves. Internal to
 * simulate.c (the ABI), simulate_run.c (the loop over accesses) and simulate_levels.c (the rules below).
 *
 * What happens, in order. An access touches every L1 line that it overlaps, one after the other; each is one request to L1.
 *   load   hit: done. miss: the line is read from the next level (a load there), put in; the line it displaces goes out.
 *   store  hit: write-back levels mark the line dirty, write-through levels send the bytes on. miss: with write-allocate, the line
 *          is read from the next level first (a load there) and then as a hit; without, the bytes go on and nothing is put in.
 *   A displaced line that is dirty is written back: one store of a whole line at the next level, after the read that displaced it.
 *   So a miss fills every level it passed, and a request from an inner level obeys the outer level's own policies.
 * Counters, per level. loads, stores: requests that arrive (L1: lines touched by the core; further out: reads of a line, write-backs
 *   and written-through bytes). load_misses, store_misses: those that did not find the line; hits = loads + stores - misses.
 *   evictions: valid lines displaced, clean or dirty. writebacks: dirty lines sent on, whatever the reason (displaced, dropped by
 *   inclusion or coherence, flushed). invalidations: lines dropped by inclusion or coherence. victims: lines an exclusive level took
 *   from the level inside it. bytes_read, bytes_written: between this level and the next. prefetches: lines read by its own
 *   prefetcher (not loads here, but loads at the next level); prefetch_hits: first hits on such lines.
 *   A request counts under the access's tag. What happens to a line counts under its owner: the last tag that filled or wrote it.
 * Inclusive level: a line that it evicts is dropped from every level inside it; dirty data inside is merged first.
 * Exclusive level: holds no line that its core's level inside holds. It is filled only by that level's displaced lines, clean or dirty
 *   (`victims`, no stores); a hit moves the line in and removes it here. Stores that come through it change a line that is there.
 * Several cores: private levels keep to one writer. A store to a line that its core's L1 does not hold dirty drops the copies in
 *   the other cores' private levels; a read that leaves the private levels makes their dirty copies clean. The unit is the longest
 *   private line. Data so written back goes out without moving or allocating lines on its way, as in a flush.
 * Replacement. An empty way first (PLRU, random: the lowest). LRU, FIFO: the way used, or filled, longest ago. PLRU: a binary
 *   tree of bits that point away from the last use. Random: ways x the upper half of the next number of splitmix64, over 2^32;
 *   each cache has its own sequence, from seed + 2^32 level + core.
 * Prefetch. Trained, per level, by the first hit on a prefetched line and by misses of core accesses (not of write-backs or of
 *   other prefetches). next-line reads the `degree` following lines. stream keeps the 16 last used 4 KiB pages: the second step in
 *   one direction within a page, and every further one, reads `degree` lines ahead. Neither crosses the page, and lines that are
 *   there are skipped. The lines are read after the access that trained is done, nearest level first. */
#ifndef PYSIM_SIMULATE_LEVELS_H
#define PYSIM_SIMULATE_LEVELS_H
#include "pysim.h"

/* A way is a word, line number << 8 | owner << 3 | flags, 0 where it is empty; and the time of its last use (LRU) or its fill
 * (FIFO), 0 where it is empty. The two lie side by side: in arrays of their own they would be 4 KiB apart in a 32 KiB L1, and
 * each load would wait for the store before it (4 KiB aliasing). */
typedef struct {
    uint64_t word, time;
} pysim_way;

#define PYSIM_VALID UINT64_C(1)
#define PYSIM_DIRTY UINT64_C(2)
#define PYSIM_PREFETCHED UINT64_C(4)
#define PYSIM_OWNER UINT64_C(0xF8)
#define PYSIM_LINE (~UINT64_C(0xFF))

enum { PYSIM_STREAMS = 16, PYSIM_PAGE_SHIFT = 12, PYSIM_QUEUE = PYSIM_CACHE_LEVELS * PYSIM_CACHE_DEGREE };

typedef struct {
    uint64_t page; /* page number + 1; 0 is empty */
    uint64_t last; /* line */
    int64_t direction;
} pysim_stream;

/* One level as the simulation reads it; the caches of its cores lie `stride` bytes apart. */
typedef struct {
    pysim_cache_level is;
    pysim_cache_counters *count; /* PYSIM_CACHE_SPLITS */
    uint64_t mask;               /* sets - 1 where sets is a power of two, else 0 */
    int32_t shift, instances;
    int64_t stride, streams, trees, ways; /* offsets in one cache: random state at 0, then these */
    char *caches;
} pysim_level;

typedef struct {
    uint64_t line;
    int32_t level;
} pysim_ahead;

typedef struct {
    pysim_level level[PYSIM_CACHE_LEVELS];
    int32_t levels, cores;
    int32_t private_levels; /* several cores, which need coherence; 0 for one core */
    int32_t unit_shift;     /* log2 of the unit of coherence */
    int32_t ahead;          /* lines in queue */
    uint64_t *clock;        /* counts uses and fills */
    pysim_ahead queue[PYSIM_QUEUE];
} pysim_simulation;

typedef struct {
    pysim_way *ways;
    uint64_t *tree, *random;
} pysim_set;

static inline char *pysim_cache_of(const pysim_level *l, int32_t core) { return l->caches + (l->is.shared ? 0 : core) * l->stride; }

static inline uint64_t pysim_set_index(const pysim_level *l, uint64_t line) {
    return l->mask != 0 ? line & l->mask : line % (uint64_t)l->is.sets;
}

/* The set's tree after a use of `way`: every bit on the path points to the other half. */
static inline uint64_t pysim_tree_use(uint64_t tree, int64_t ways, int64_t way) {
    int64_t node = 1;
    for (int64_t half = ways >> 1; half >= 1; half >>= 1) {
        uint64_t right = (way & half) != 0;
        uint64_t bit = UINT64_C(1) << node;
        tree = right ? tree & ~bit : tree | bit;
        node = 2 * node + (int64_t)right;
    }
    return tree;
}

/* The way of a set that holds the line, or -1. */
static inline int64_t pysim_find_(const pysim_way *ways, int64_t count, uint64_t line) {
    uint64_t key = line << 8 | PYSIM_VALID;
    for (int64_t way = 0; way < count; ++way)
        if ((ways[way].word & (PYSIM_LINE | PYSIM_VALID)) == key) return way;
    return -1;
}

static inline void pysim_keep_earlier(int64_t *way, uint64_t *time, int64_t other, uint64_t other_time) {
    uint64_t mask = -(uint64_t)(other_time < *time); /* no branch: the earliest way is not predictable */
    *way ^= (*way ^ other) & (int64_t)mask;
    *time ^= (*time ^ other_time) & mask;
}

/* A way with the smallest time (an empty one if there is one). Two chains of comparisons, since each one waits for the one before. */
static inline int64_t pysim_earliest_(const pysim_way *ways, int64_t count) {
    int64_t even = 0, odd = count > 1, way = 2;
    uint64_t even_time = ways[even].time, odd_time = ways[odd].time;
    for (; way + 1 < count; way += 2) {
        pysim_keep_earlier(&even, &even_time, way, ways[way].time);
        pysim_keep_earlier(&odd, &odd_time, way + 1, ways[way + 1].time);
    }
    if (way < count) pysim_keep_earlier(&even, &even_time, way, ways[way].time);
    return even_time <= odd_time ? even : odd;
}

static inline int64_t pysim_find(const pysim_way *ways, int64_t count, uint64_t line) {
    return count == 8 ? pysim_find_(ways, 8, line) : count == 16 ? pysim_find_(ways, 16, line) : pysim_find_(ways, count, line);
}
static inline int64_t pysim_earliest(const pysim_way *ways, int64_t count) {
    return count == 8 ? pysim_earliest_(ways, 8) : count == 16 ? pysim_earliest_(ways, 16) : pysim_earliest_(ways, count);
}

/* The caller's accesses, checked. */
typedef struct {
    const int64_t *addresses;
    const int32_t *sizes;
    const uint8_t *is_write, *tags, *cores; /* tags and cores may be NULL */
    int64_t n;
} pysim_chunk;
void pysim_run_chunk(pysim_simulation *s, const pysim_chunk *c);

/* One request of a core to L1 for bytes within one line, with the prefetches that it triggers. */
void pysim_touch(pysim_simulation *s, int32_t core, uint64_t address, int64_t bytes, int write, uint64_t owner);

/* Writes every dirty line of level i back to memory through the levels outside it, and leaves it clean. */
void pysim_clean_level(pysim_simulation *s, int32_t i);
#endif
