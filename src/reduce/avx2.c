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
#define V_F16_WIDEN(half) (vec) _mm256_cvtph_ps((__m128i)(half))
#define V_F16_ROUND(v) _mm256_cvtps_ph((__m256)(v), _MM_FROUND_TO_NEAREST_INT)
#define V_F16_JOIN(a, b) (vec) _mm256_set_m128i(b, a)
#define V_FENCE() _mm_sfence()

/* v_bf16_round in fewer instructions. Less one, where the upper half is even and zero stays zero, what is above has the top bit. */
TARGET static inline __m256i bf16_round(__m256i even, __m256i odd)
{
    __m256i high = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xaa);
    __m256i low = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
    __m256i less = _mm256_subs_epu16(low, _mm256_andnot_si256(high, _mm256_set1_epi16(1)));
    return _mm256_add_epi16(high, _mm256_srli_epi16(less, 15));
}
#define V_BF16_ROUND(even, odd) bf16_round((__m256i)(even), (__m256i)(odd))

#include "reduce/kernel.h"
