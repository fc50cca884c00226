/* SPDX-License-Identifier: Apache-2.0
 * Softmax of rows of bytes (contract: pysim_byte_softmax, native/abi/operators.h). Included by loops.c, of floats, after rounding.h. The order of sums is that of
 * softmax_row. */

/* What bytes stand for, less the largest of them. GCC vectorises this loop; it takes a vector of bytes apart lane by lane. */
static void byte_numbers(int64_t size, uint8_t flip, float zero, float scale, const uint8_t *restrict x, float *restrict numbers) {
    uint8_t most = 0;
    for (int64_t i = 0; i < size; i++) {
        const uint8_t own = x[i] ^ flip;
        most = own > most ? own : most;
    }
    const float largest = ((float)most - zero) * scale;
    for (int64_t i = 0; i < size; i++) numbers[i] = ((float)(int32_t)(uint8_t)(x[i] ^ flip) - zero) * scale - largest;
}

/* Their exponentials, in place, and the sum of these; numbers behind the last become 0. */
static NUMBER sum_of_exponentials(int64_t size, float *numbers) {
    const int64_t together = TOGETHER * LANES;
    VEC sum[PARTS];
#pragma GCC unroll 8
    for (int p = 0; p < PARTS; p++) sum[p] = v_zero();
    int64_t i = 0;
    for (; i + together <= size; i += together) {
        VEC v[TOGETHER];
#pragma GCC unroll 4
        for (int n = 0; n < TOGETHER; n++) v[n] = v_load(numbers + i + n * LANES);
        exponentials(TOGETHER, v);
#pragma GCC unroll 4
        for (int n = 0; n < TOGETHER; n++) {
            v_store(numbers + i + n * LANES, v[n]);
            sum[n % PARTS] += v[n];
        }
    }
    for (int p = 0; i < size; i += LANES, p = (p + 1) % PARTS) {
        VEC v = v_load(numbers + i);
        exponentials(1, &v);
        if (i + LANES > size) v = first_lanes(v, size - i, v_zero());
        v_store(numbers + i, v);
        sum[p] += v;
    }
    return across_parts(0, sum);
}

static void byte_softmax_rows(const pysim_byte_softmax *s, int64_t begin, int64_t end, const uint8_t *x, uint8_t *y) {
    const uint8_t flip = s->from.is_signed ? 0x80 : 0;
    const uint32_t to = s->to.is_signed ? 0x80 : 0, zero = (uint32_t)s->to.zero + to;
    const rounding_ends ends = {v_set1(-(float)zero), v_set1(255.0f - (float)zero), zero + to};
    T numbers[PYSIM_LONGEST_ROW + LANES];
    for (int64_t r = begin; r < end; r++) {
        uint8_t *out = y + r * s->size;
        byte_numbers(s->size, flip, (float)s->from.zero + (float)flip, s->from.scale, x + r * s->size, numbers);
        const VEC factor = v_set1(1 / sum_of_exponentials(s->size, numbers) / s->to.scale);
        int64_t i = 0;
        for (; i + LANES <= s->size; i += LANES) {
            const ROUNDED bytes = __builtin_convertvector(rounded_bits(&ends, v_load(numbers + i) * factor), ROUNDED);
            memcpy(out + i, &bytes, LANES);
        }
        if (i == s->size) continue;
        const ROUNDED bytes = __builtin_convertvector(rounded_bits(&ends, v_load(numbers + i) * factor), ROUNDED);
        memcpy(out + i, &bytes, (size_t)(s->size - i));
    }
}
