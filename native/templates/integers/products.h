/* SPDX-License-Identifier: Apache-2.0
 * What products of two values of bytes need besides their micro-kernel (operators/byte_products.c). Included by integers.c. */

static void words_of_rows(int64_t rows, int64_t columns, uint8_t flip, const uint8_t *restrict b, uint32_t *restrict to,
                          int32_t *restrict sums) {
    const uint8_t *second = b + columns, *third = second + columns, *fourth = third + columns;
    if (rows == 4) {
        for (int64_t j = 0; j < columns; j++) {
            const uint8_t w = b[j] ^ flip, x = second[j] ^ flip, y = third[j] ^ flip, z = fourth[j] ^ flip;
            to[j] = (uint32_t)w | (uint32_t)x << 8 | (uint32_t)y << 16 | (uint32_t)z << 24;
            sums[j] += (int8_t)w + (int8_t)x + (int8_t)y + (int8_t)z;
        }
        return;
    }
    for (int64_t j = 0; j < columns; j++) {
        uint32_t word = 0;
        for (int64_t r = 0; r < rows; r++) {
            const uint8_t x = b[r * columns + j] ^ flip;
            word |= (uint32_t)x << (8 * r);
            sums[j] += (int8_t)x;
        }
        to[j] = word;
    }
}

static void totals(int64_t rows, int64_t k, uint8_t flip, const uint8_t *restrict a, int32_t *restrict sums) {
    for (int64_t r = 0; r < rows; r++, a += k) {
        uint32_t sum = 0;
        for (int64_t i = 0; i < k; i++) sum += (uint8_t)(a[i] ^ flip);
        sums[r] = (int32_t)sum;
    }
}
