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
#define V_STREAM_HALF(to, v) _mm256_stream_si256((__m256i *)(void *)(to), (__m256i)(v))
#define V_F16_WIDEN(half) (vec) _mm512_cvtph_ps((__m256i)(half))
#define V_F16_ROUND(v) _mm512_cvtps_ph((__m512)(v), _MM_FROUND_TO_NEAREST_INT)
#define V_FENCE() _mm_sfence()

/*
 * v_bf16_round. Halves of two vectors are put in turn by one permutation each, where shifts and blends take two. The instruction
 * for all of it (AVX512-BF16) flushes denormals, which are other bits.
 */
TARGET static inline __m512i bf16_round(__m512i even, __m512i odd)
{
    const __m512i in_turn = (__m512i)((__v16su){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} * 0x20002u);
    __m512i high = _mm512_permutex2var_epi16(even, _mm512_add_epi32(in_turn, _mm512_set1_epi32(0x210001)), odd);
    __m512i low = _mm512_permutex2var_epi16(even, _mm512_add_epi32(in_turn, _mm512_set1_epi32(0x200000)), odd);
    __m512i sticky = _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(1), 0xf8); /* low | (high & 1) */
    __mmask32 above = _mm512_cmpgt_epu16_mask(sticky, _mm512_set1_epi16((short)0x8000));
    return _mm512_mask_sub_epi16(high, above, high, _mm512_set1_epi16(-1));
}
#define V_BF16_ROUND(even, odd) bf16_round((__m512i)(even), (__m512i)(odd))

#include "reduce/kernel.h"
