/*
 * generic.c - stage 5: kernels for the baseline instruction set, on any processor: vectors of 16 bytes in the compiler's own
 * arithmetic. Body in kernel.h. On x86-64 the streaming stores are those of SSE2; elsewhere they are plain. No state; any thread.
 */
#define FAMILY generic
#define TARGET
#define VBYTES 16

#if defined(__SSE2__) && defined(__x86_64__)
#include <emmintrin.h>
#define V_MIN_F32(a, b) _mm_min_ps(a, b)
#define V_MIN_F64(a, b) _mm_min_pd(a, b)
#define V_STREAM(to, v) _mm_stream_si128((__m128i *)(void *)(to), (__m128i)(v))
#define V_FENCE() _mm_sfence()
#else
#define V_MIN_F32(a, b) v_pick((vec)((a) < (b)), (vec)(a), (vec)(b))
#define V_MIN_F64(a, b) v_pick((vec)((a) < (b)), (vec)(a), (vec)(b))
#define V_STREAM(to, v) (*(vec_at *)(to) = (v))
#define V_FENCE() ((void)0)
typedef unsigned v_bits __attribute__((vector_size(VBYTES)));
static inline __attribute__((always_inline)) v_bits v_pick(v_bits mask, v_bits a, v_bits b)
{
    return (a & mask) | (b & ~mask);
}
#endif

#include "reduce/kernel.h"
