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

/* abci_bf16_round, with a NaN put in by a mask. The instruction for it (AVX512-BF16) flushes denormals, which are other bits. */
TARGET static inline __m256i bf16_round(__m512i v)
{
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(v, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, v, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
#define V_BF16_WIDEN(half) (vec) _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)(half)), 16)
#define V_BF16_ROUND(v) bf16_round((__m512i)(v))

#include "reduce/kernel.h"
