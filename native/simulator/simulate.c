/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points of the cache simulator: argument checks, the layout of the caller's buffer, and queries. The rules of the simulation and
 * the meaning of every counter are in simulate_levels.h; the loop over accesses is simulate_run.c.
 *
 * Worked number: L1 of 64 sets x 8 ways takes 64 + 64*8*16 = 8256 bytes of state, 16 per way. */
#include "simulate_levels.h"
#include "abi/status.h"
#include <string.h>

#define MAGIC UINT64_C(0x70797369636d7631)
#define ADDRESS_END (INT64_C(1) << 56)

typedef struct {
    uint64_t magic;
    uint64_t clock;
    pysim_cache_config config;
    pysim_cache_counters count[PYSIM_CACHE_LEVELS][PYSIM_CACHE_SPLITS];
} header;

static int power_of_two(int64_t x) { return x > 0 && (x & (x - 1)) == 0; }

static int32_t log2_of(int64_t x) {
    int32_t shift = 0;
    while (x >> shift > 1) ++shift;
    return shift;
}

static int flag(int32_t x) { return x == 0 || x == 1; }

/* Checks one level. */
static pysim_status check_level(const pysim_cache_level *l, int32_t i) {
    int name = i + 1;
    if (l->sets < 1 || l->ways < 1 || l->sets > UINT32_MAX / l->ways)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d: %lld sets of %lld ways; both should be at least 1, and the lines below 2^32",
                          name, (long long)l->sets, (long long)l->ways);
    if (!power_of_two(l->line_bytes) || l->line_bytes > 1 << 30)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d: line_bytes is %lld; it should be a power of two up to 2^30", name,
                          (long long)l->line_bytes);
    if (l->policy < PYSIM_LRU || l->policy > PYSIM_RANDOM || l->inclusion < PYSIM_NON_INCLUSIVE || l->inclusion > PYSIM_EXCLUSIVE ||
        l->prefetch < PYSIM_PREFETCH_NONE || l->prefetch > PYSIM_PREFETCH_STREAM)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d: policy %d, inclusion %d or prefetch %d is not one of its enum", name,
                          l->policy, l->inclusion, l->prefetch);
    if (!flag(l->write_back) || !flag(l->write_allocate) || !flag(l->fetch_on_writeback) || !flag(l->shared))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d: write_back, write_allocate, fetch_on_writeback and shared are 0 or 1", name);
    if (l->policy == PYSIM_PLRU && (!power_of_two(l->ways) || l->ways > 64))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d: a PLRU tree needs 1, 2, 4, 8, 16, 32 or 64 ways, not %lld", name,
                          (long long)l->ways);
    if (l->prefetch != PYSIM_PREFETCH_NONE && (l->prefetch_degree < 1 || l->prefetch_degree > PYSIM_CACHE_DEGREE))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d: prefetch_degree is %d; it should be 1..%d", name, l->prefetch_degree,
                          (int)PYSIM_CACHE_DEGREE);
    return PYSIM_OK;
}

/* Checks a level against the next inner one (NULL for L1). */
static pysim_status check_pair(const pysim_cache_level *in, const pysim_cache_level *l, int32_t i) {
    int name = i + 1;
    if (in == NULL) {
        if (l->inclusion != PYSIM_NON_INCLUSIVE)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level 1 has no level inside it, so it is non-inclusive");
        return PYSIM_OK;
    }
    if (l->line_bytes < in->line_bytes)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d: line_bytes %lld is less than %lld of the level inside it", name,
                          (long long)l->line_bytes, (long long)in->line_bytes);
    if (in->shared && !l->shared)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "cache level %d is private, but the level inside it is shared", name);
    if (l->inclusion == PYSIM_EXCLUSIVE &&
        (l->line_bytes != in->line_bytes || !l->write_back || !in->write_back || l->prefetch != PYSIM_PREFETCH_NONE))
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "cache level %d: an exclusive level and the one inside it are write-back with equal lines, "
                          "and it prefetches nothing",
                          name);
    return PYSIM_OK;
}

static pysim_status check_config(const pysim_cache_config *c) {
    if (c == NULL) return pysim_fail(PYSIM_BAD_ARGUMENT, "the cache configuration is NULL");
    if (c->levels < 1 || c->levels > PYSIM_CACHE_LEVELS)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "%d cache levels; 1..%d can be simulated", c->levels, (int)PYSIM_CACHE_LEVELS);
    if (c->cores < 1 || c->cores > PYSIM_CACHE_CORES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "%d cores; 1..%d can be simulated", c->cores, (int)PYSIM_CACHE_CORES);
    for (int32_t i = 0; i < c->levels; ++i) {
        pysim_status status = check_level(&c->level[i], i);
        if (status == PYSIM_OK) status = check_pair(i > 0 ? &c->level[i - 1] : NULL, &c->level[i], i);
        if (status != PYSIM_OK) return status;
    }
    return PYSIM_OK;
}

static int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Layout of one cache's state in bytes: random state | streams | trees | ways; each a multiple of 64 bytes. */
static void lay_out(const pysim_cache_level *is, int32_t cores, pysim_level *l) {
    memset(l, 0, sizeof *l);
    l->is = *is;
    l->mask = power_of_two(is->sets) ? (uint64_t)is->sets - 1 : 0;
    l->shift = log2_of(is->line_bytes);
    l->instances = is->shared ? 1 : cores;
    l->streams = whole_lines((int64_t)sizeof(uint64_t));
    l->trees = l->streams + (is->prefetch == PYSIM_PREFETCH_STREAM ? whole_lines(PYSIM_STREAMS * (int64_t)sizeof(pysim_stream)) : 0);
    l->ways = l->trees + (is->policy == PYSIM_PLRU ? whole_lines(is->sets * (int64_t)sizeof(uint64_t)) : 0);
    l->stride = l->ways + whole_lines(is->sets * is->ways * (int64_t)sizeof(pysim_way));
}

pysim_status pysim_cache_state_bytes(const pysim_cache_config *config, int64_t *bytes) {
    pysim_status status = check_config(config);
    if (status != PYSIM_OK) return status;
    if (bytes == NULL) return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_cache_state_bytes: bytes is NULL");
    int64_t total = whole_lines(sizeof(header));
    for (int32_t i = 0; i < config->levels; ++i) {
        pysim_level l;
        lay_out(&config->level[i], config->cores, &l);
        total += l.stride * l.instances; /* cannot overflow: at most 256 caches of 2^32 ways of 16 bytes, and smaller parts */
    }
    *bytes = total;
    return PYSIM_OK;
}

/* The simulation as pointers into a state that pysim_cache_init has written. */
static pysim_status open_state(const void *state, const char *caller, pysim_simulation *s) {
    const header *h = state;
    if (h == NULL || (uintptr_t)h % sizeof(uint64_t) != 0)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "%s: the state is %s", caller, h == NULL ? "NULL" : "not 8-byte aligned");
    if (h->magic != MAGIC) return pysim_fail(PYSIM_BAD_ARGUMENT, "%s: the state was not set up by pysim_cache_init", caller);
    s->levels = h->config.levels;
    s->cores = h->config.cores;
    s->private_levels = s->unit_shift = s->ahead = 0;
    s->clock = (uint64_t *)(uintptr_t)&h->clock;
    char *at = (char *)(uintptr_t)h + whole_lines(sizeof *h);
    for (int32_t i = 0; i < s->levels; ++i) {
        pysim_level *l = &s->level[i];
        lay_out(&h->config.level[i], s->cores, l);
        l->count = (pysim_cache_counters *)(uintptr_t)h->count[i];
        l->caches = at;
        at += l->stride * l->instances;
        if (s->cores > 1 && !l->is.shared) {
            s->private_levels = i + 1;
            s->unit_shift = l->shift;
        }
    }
    return PYSIM_OK;
}

pysim_status pysim_cache_init(const pysim_cache_config *config, void *state, int64_t state_bytes) {
    int64_t bytes = 0;
    pysim_status status = pysim_cache_state_bytes(config, &bytes);
    if (status != PYSIM_OK) return status;
    if (state == NULL || (uintptr_t)state % sizeof(uint64_t) != 0 || state_bytes < bytes)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "the cache state needs %lld bytes, 8-byte aligned; %lld given", (long long)bytes,
                          (long long)state_bytes);
    memset(state, 0, (size_t)bytes);
    header *h = state;
    h->magic = MAGIC;
    h->config = *config;
    pysim_simulation s;
    status = open_state(state, "pysim_cache_init", &s);
    for (int32_t i = 0; i < config->levels; ++i)
        for (int32_t core = 0; core < s.level[i].instances; ++core)
            *(uint64_t *)(s.level[i].caches + core * s.level[i].stride) = config->seed + ((uint64_t)i << 32) + (uint64_t)core;
    return status;
}

/* Describes the first invalid access. */
static pysim_status refuse(const pysim_simulation *s, int64_t n, const int64_t *addresses, const int32_t *sizes, const uint8_t *is_write,
                           const uint8_t *tags, const uint8_t *cores) {
    for (int64_t k = 0; k < n; ++k) {
        if (sizes[k] < 1 || addresses[k] < 0 || addresses[k] > ADDRESS_END - sizes[k])
            return pysim_fail(PYSIM_BAD_ARGUMENT, "access %lld: %d bytes at address %lld; sizes are at least 1 and addresses 0..2^56-1",
                              (long long)k, sizes[k], (long long)addresses[k]);
        if (is_write[k] > 1)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "access %lld: is_write is %d; it should be 0 or 1", (long long)k, is_write[k]);
        if (tags != NULL && tags[k] & 0xC8)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "access %lld: tag 0x%02x; a tag is operand | phase << 4 with operand 0..7 and phase 0..3",
                              (long long)k, (unsigned)tags[k]);
        if (cores != NULL && cores[k] >= s->cores)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "access %lld: core %d, but the hierarchy has cores 0..%d", (long long)k, cores[k],
                              s->cores - 1);
    }
    return PYSIM_OK;
}

static pysim_status check_accesses(const pysim_simulation *s, int64_t n, const int64_t *addresses, const int32_t *sizes,
                                   const uint8_t *is_write, const uint8_t *tags, const uint8_t *cores) {
    if (n < 0) return pysim_fail(PYSIM_BAD_ARGUMENT, "%lld accesses; there are 0 or more", (long long)n);
    if (n > 0 && (addresses == NULL || sizes == NULL || is_write == NULL))
        return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_cache_access: addresses, sizes or is_write is NULL");
    uint64_t address_bits = 0;
    uint32_t size_bits = 0;
    uint8_t write_bits = 0, tag_bits = 0, core = 0;
    for (int64_t k = 0; k < n; ++k) address_bits |= (uint64_t)addresses[k];
    for (int64_t k = 0; k < n; ++k) size_bits |= (uint32_t)sizes[k] | ((uint32_t)sizes[k] - 1);
    for (int64_t k = 0; k < n; ++k) write_bits |= is_write[k];
    for (int64_t k = 0; tags != NULL && k < n; ++k) tag_bits |= tags[k];
    for (int64_t k = 0; cores != NULL && k < n; ++k) core = cores[k] > core ? cores[k] : core;
    /* An address below 2^55 plus any size stays below 2^56; larger addresses are checked one by one. */
    int good = address_bits >> 55 == 0 && size_bits >> 31 == 0 && write_bits <= 1 && (tag_bits & 0xC8) == 0 && core < s->cores;
    return good ? PYSIM_OK : refuse(s, n, addresses, sizes, is_write, tags, cores);
}

pysim_status pysim_cache_access(void *state, int64_t n, const int64_t *addresses, const int32_t *sizes, const uint8_t *is_write,
                                const uint8_t *tags, const uint8_t *cores) {
    pysim_simulation s;
    pysim_status status = open_state(state, "pysim_cache_access", &s);
    if (status == PYSIM_OK) status = check_accesses(&s, n, addresses, sizes, is_write, tags, cores);
    if (status == PYSIM_OK) pysim_run_chunk(&s, &(pysim_chunk){addresses, sizes, is_write, tags, cores, n});
    return status;
}

pysim_status pysim_cache_flush(void *state) {
    pysim_simulation s;
    pysim_status status = open_state(state, "pysim_cache_flush", &s);
    for (int32_t i = 0; status == PYSIM_OK && i < s.levels; ++i) pysim_clean_level(&s, i);
    return status;
}

static pysim_status check_place(const pysim_simulation *s, int32_t level, int32_t core) {
    if (level < 0 || level >= s->levels || core < 0 || core >= s->cores)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "level %d of core %d; the hierarchy has levels 0..%d and cores 0..%d", level, core,
                          s->levels - 1, s->cores - 1);
    return PYSIM_OK;
}

pysim_status pysim_cache_read_counters(const void *state, int32_t level, pysim_cache_counters *out) {
    pysim_simulation s;
    pysim_status status = open_state(state, "pysim_cache_read_counters", &s);
    if (status == PYSIM_OK) status = check_place(&s, level, 0);
    if (status != PYSIM_OK) return status;
    if (out == NULL) return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_cache_read_counters: out is NULL");
    memcpy(out, s.level[level].count, PYSIM_CACHE_SPLITS * sizeof *out);
    return PYSIM_OK;
}

pysim_status pysim_cache_clear_counters(void *state) {
    pysim_simulation s;
    pysim_status status = open_state(state, "pysim_cache_clear_counters", &s);
    if (status == PYSIM_OK) memset(((header *)state)->count, 0, sizeof((header *)state)->count);
    return status;
}

pysim_status pysim_cache_contents(const void *state, int32_t level, int32_t core, int64_t *addresses, uint8_t *dirty, int64_t *count) {
    pysim_simulation s;
    pysim_status status = open_state(state, "pysim_cache_contents", &s);
    if (status == PYSIM_OK) status = check_place(&s, level, core);
    if (status != PYSIM_OK) return status;
    if (addresses == NULL || dirty == NULL || count == NULL)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "pysim_cache_contents: addresses, dirty or count is NULL");
    const pysim_level *l = &s.level[level];
    const pysim_way *ways = (const pysim_way *)(pysim_cache_of(l, core) + l->ways);
    *count = 0;
    for (int64_t k = 0; k < l->is.sets * l->is.ways; ++k) {
        if (ways[k].word == 0) continue;
        addresses[*count] = (int64_t)(ways[k].word >> 8 << l->shift);
        dirty[(*count)++] = (ways[k].word & PYSIM_DIRTY) != 0;
    }
    return PYSIM_OK;
}
