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

#include "reduce/kernel.h"
