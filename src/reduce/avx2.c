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

#include "reduce/kernel.h"
