/*
 * avx2.c - stage 5: kernels for x86-64 with AVX2 and F16C, vectors of 32 bytes. Body in kernel.h. Only called when the CPU has
 * both.
 */
#define FAMILY avx2
#define TARGET __attribute__((target("avx2,f16c")))
#define VBYTES 32

#include <immintrin.h>
#define V_MIN_F32(a, b) _mm256_min_ps(a, b)
#define V_MIN_F64(a, b) _mm256_min_pd(a, b)
#define V_STREAM(to, v) _mm256_stream_si256((__m256i *)(void *)(to), (__m256i)(v))
#define V_STREAM_HALF(to, v) _mm_stream_si128((__m128i *)(void *)(to), (__m128i)(v))
#define V_F16_WIDEN(half) (vec) _mm256_cvtph_ps((__m128i)(half))
#define V_F16_ROUND(v) _mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT)
#define V_FENCE() _mm_sfence()

/* abci_bf16_round, in half the instructions that the compiler makes of vector arithmetic: a NaN is blended in, two halves packed.
 */
TARGET static inline __m128i bf16_round(__m256i v)
{
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(v, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(0x7fff)), odd);
    __m256 quiet = (__m256)_mm256_or_si256(v, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps((__m256)v, (__m256)v, _CMP_UNORD_Q);
    __m256i high = _mm256_srli_epi32((__m256i)_mm256_blendv_ps((__m256)rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
#define V_BF16_WIDEN(half) (vec) _mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)(half)), 16)
#define V_BF16_ROUND(v) bf16_round((__m256i)(v))

#include "reduce/kernel.h"
