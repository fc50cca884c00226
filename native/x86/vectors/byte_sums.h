/* SPDX-License-Identifier: Apache-2.0
 * v_byte_sums: V_BYTE_SUMS sums f a + g b + shift of unsigned bytes, once flipped, rounded to integers, plus `zero` within low..high, flipped. It
 * returns whether one is further than `far` from the integer that it was rounded to. Bytes lie in the order that packing to 16 and to 8 bits
 * undoes. */
typedef struct {
    float f, g, shift, far;
    int32_t zero, low, high;
    uint8_t a_flip, b_flip, y_flip;
} BYTE_SUMS;
