/*
 * avx512.c - stage 5: kernels for x86-64 with AVX-512 (F, BW, DQ, VL), vectors of 64 bytes. Body in kernel.h. Twice the speed of
 * AVX2 on data in the first-level cache, the same beyond. Only called when the CPU has all four.
 */
#define FAMILY avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define VBYTES 64

#include <immintrin.h>
#define V_MIN_F32(a, b) _mm512_min_ps(a, b)
#define V_MIN_F64(a, b) _mm512_min_pd(a, b)
#define V_STREAM(to, v) _mm512_stream_si512((void *)(to), (__m512i)(v))
#define V_F16_WIDEN(half) (vec) _mm512_cvtph_ps((__m256i)(half))
#define V_F16_ROUND(v) _mm512_cvtps_ph((__m512)(v), _MM_FROUND_TO_NEAREST_INT)
#define V_F16_JOIN(a, b) (vec) _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1)
#define V_FENCE() _mm_sfence()

/*
 * A vector of bf16 becomes two by zeros put in between, of each 16 bytes the first half in the one and the second half in the
 * other: four such instructions are done in a cycle, but two shifts, and the additions wait for the same two units. Upper and lower
 * halves come back in order by one permutation each. The instruction for all of it (AVX512-BF16) flushes denormals, which are other
 * bits.
 */
TARGET static inline __m512i bf16_widen(__m512i raw, int part)
{
    __asm__("" : "+v"(raw)); /* loaded once, and not by each of its readers */
    return part ? _mm512_unpackhi_epi16(_mm512_setzero_si512(), raw) : _mm512_unpacklo_epi16(_mm512_setzero_si512(), raw);
}

/* Of all pairs of bytes the lower one (half 0), or the upper. */
TARGET static inline __m512i bf16_halves(__m512i first, __m512i second, int half)
{
    const __m512i order = (__m512i)((__v32hu){0,  2,  4,  6,  32, 34, 36, 38, 8,  10, 12, 14, 40, 42, 44, 46,
                                              16, 18, 20, 22, 48, 50, 52, 54, 24, 26, 28, 30, 56, 58, 60, 62});
    return _mm512_permutex2var_epi16(first, _mm512_add_epi16(order, _mm512_set1_epi16((short)half)), second);
}

TARGET static inline __m512i bf16_round(__m512i first, __m512i second)
{
    __m512i high = bf16_halves(first, second, 1), low = bf16_halves(first, second, 0);
    __m512i sticky = _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(1), 0xf8); /* low | (high & 1) */
    __mmask32 above = _mm512_cmpgt_epu16_mask(sticky, _mm512_set1_epi16((short)0x8000));
    return _mm512_mask_sub_epi16(high, above, high, _mm512_set1_epi16(-1));
}
#define V_BF16_WIDEN(raw, part) (vec) bf16_widen((__m512i)(raw), part)
#define V_BF16_CUT(first, second) (vec) bf16_halves((__m512i)(first), (__m512i)(second), 1)
#define V_BF16_ROUND(even, odd) bf16_round((__m512i)(even), (__m512i)(odd))

#include "reduce/kernel.h"
