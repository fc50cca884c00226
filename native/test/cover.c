/* SPDX-License-Identifier: Apache-2.0
 * Greedy pairwise covering array. Each new row starts from a pair that is still open, then gives every other axis, in random
 * order, the level that closes most open pairs; the best of some candidates is kept. A group of axes is one axis with the
 * product of their levels while rows are built. */
#include "cover.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { LEVELS = 256, CANDIDATES = 12 };

typedef struct {
    int32_t axes, levels[COVER_AXES], first[COVER_AXES]; /* global number of an axis' level 0 */
    unsigned char open[LEVELS][LEVELS];                  /* pairs of global numbers that have not met */
    int64_t left;
} state;

static int32_t closes(const state *s, const int32_t *level, int32_t axis, int32_t value) {
    int32_t count = 0;
    for (int32_t other = 0; other < s->axes; other++)
        if (other != axis && level[other] >= 0) count += s->open[s->first[axis] + value][s->first[other] + level[other]];
    return count;
}

/* The first open pair at or after a random place. */
static void start(const state *s, check_random *random, int32_t *level) {
    const int32_t total = s->first[s->axes - 1] + s->levels[s->axes - 1];
    const int32_t offset = (int32_t)check_below(random, (int64_t)total * total);
    for (int32_t i = 0; i < total * total; i++) {
        const int32_t at = (offset + i) % (total * total), one = at / total, two = at % total;
        if (!s->open[one][two]) continue;
        for (int32_t axis = 0; axis < s->axes; axis++) {
            if (one >= s->first[axis] && one < s->first[axis] + s->levels[axis]) level[axis] = one - s->first[axis];
            if (two >= s->first[axis] && two < s->first[axis] + s->levels[axis]) level[axis] = two - s->first[axis];
        }
        return;
    }
}

static int32_t candidate(const state *s, check_random *random, int32_t *level) {
    int32_t order[COVER_AXES], gained = 0;
    for (int32_t i = 0; i < s->axes; i++) {
        const int32_t j = (int32_t)check_below(random, i + 1);
        order[i] = order[j];
        order[j] = i;
        level[i] = -1;
    }
    start(s, random, level);
    for (int32_t i = 0; i < s->axes; i++) {
        const int32_t axis = order[i];
        if (level[axis] < 0) {
            const int32_t shift = (int32_t)check_below(random, s->levels[axis]);
            int32_t best = -1, chosen = 0;
            for (int32_t v = 0; v < s->levels[axis]; v++) {
                const int32_t value = (v + shift) % s->levels[axis], count = closes(s, level, axis, value);
                if (count > best) best = count, chosen = value;
            }
            level[axis] = chosen;
        }
    }
    for (int32_t axis = 0; axis < s->axes; axis++) gained += closes(s, level, axis, level[axis]);
    return gained;
}

static void keep(state *s, const int32_t *level) {
    for (int32_t a = 0; a < s->axes; a++)
        for (int32_t b = 0; b < s->axes; b++) {
            unsigned char *pair = &s->open[s->first[a] + level[a]][s->first[b] + level[b]];
            s->left -= *pair;
            *pair = 0;
        }
}

void cover_make(int32_t axes, const int32_t *levels, int32_t groups, const int32_t *group, uint64_t seed, cover_array *out) {
    state *s = calloc(1, sizeof *s);
    check_random random = {seed};
    if (!s || axes > COVER_AXES) abort();
    s->axes = groups;
    for (int32_t g = 0, axis = 0; g < groups; g++) {
        s->levels[g] = 1;
        for (int32_t i = 0; i < group[g]; i++) s->levels[g] *= levels[axis++];
        s->first[g] = g ? s->first[g - 1] + s->levels[g - 1] : 0;
        if (s->first[g] + s->levels[g] > LEVELS) abort();
    }
    for (int32_t a = 0; a < groups; a++)
        for (int32_t b = 0; b < groups; b++)
            for (int32_t i = 0; a != b && i < s->levels[a] * s->levels[b]; i++, s->left++)
                s->open[s->first[a] + i / s->levels[b]][s->first[b] + i % s->levels[b]] = 1;

    for (out->count = 0; s->left > 0; out->count++) {
        int32_t best[COVER_AXES], level[COVER_AXES], most = -1;
        for (int32_t i = 0; i < CANDIDATES; i++) {
            const int32_t gained = candidate(s, &random, level);
            if (gained > most) most = gained, memcpy(best, level, sizeof best);
        }
        keep(s, best);
        if (out->count == COVER_ROWS) abort();
        for (int32_t g = 0, axis = 0; g < groups; g++)
            for (int32_t i = 0; i < group[g]; i++, axis++) {
                out->row[out->count][axis] = (unsigned char)(best[g] % levels[axis]);
                best[g] /= levels[axis];
            }
    }
    free(s);
}

void cover_settings(int32_t axes, const int32_t *levels, int32_t family, int32_t round, cover_array *out) {
    const uint64_t seed = check_given.seed + 1000 * (uint64_t)round + 100 * (uint64_t)family;
    int32_t group[COVER_AXES];
    for (int32_t i = 0; i < axes; i++) group[i] = 1;
    if (!check_given.quick) group[0] = 2, group[1] = 3;
    cover_make(axes, levels, check_given.quick ? axes : axes - 3, group, seed, out);
}
