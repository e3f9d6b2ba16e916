/*
 * lanes.h - stage 5: element.h once more, for a vector of elements: how operands become vectors, are folded, finished and stored.
 * Included by kernel.h alone, once in each family, after the family's macros; the loops over memory are there. The compiler's
 * vector arithmetic, force-inlined with constant type and op. No state; any thread; lane by lane the same bits as element.h.
 *
 * A vector holds VBYTES of what is computed with: narrow floats are float32 here. A whole vector of floats of 16 bits makes two;
 * one of 8 bits comes from a quarter of a vector in memory. A bf16 is the upper half of a float32, so no shuffle is needed: the
 * even elements are shifted up, the odd ones are where they are. What a family has better instructions for it says by macros:
 * V_MIN_F32, V_MIN_F64 (needed); V_F16_WIDEN, V_F16_ROUND, V_F16_JOIN; V_BF16_WIDEN, V_BF16_CUT; V_BF16_ROUND.
 */
#define V_INLINE static inline __attribute__((always_inline)) TARGET

typedef uint32_t vec __attribute__((vector_size(VBYTES)));
typedef float vec_f32 __attribute__((vector_size(VBYTES)));
typedef double vec_f64 __attribute__((vector_size(VBYTES)));
typedef int8_t vec_i8 __attribute__((vector_size(VBYTES)));
typedef uint8_t vec_u8 __attribute__((vector_size(VBYTES)));
typedef int16_t vec_i16 __attribute__((vector_size(VBYTES)));
typedef uint16_t vec_u16 __attribute__((vector_size(VBYTES)));
typedef int32_t vec_i32 __attribute__((vector_size(VBYTES)));
typedef uint64_t vec_u64 __attribute__((vector_size(VBYTES)));
typedef int64_t vec_i64 __attribute__((vector_size(VBYTES)));
typedef double vec_wide __attribute__((vector_size(2 * VBYTES)));   /* a lane for each of 4 bytes */
typedef float vec_wide2 __attribute__((vector_size(2 * VBYTES)));   /* of 2 bytes */
typedef float vec_wide4 __attribute__((vector_size(4 * VBYTES)));   /* of 1 byte */
typedef uint16_t vec_half __attribute__((vector_size(VBYTES / 2))); /* as many lanes as vec, of 2 bytes */
typedef uint64_t vec_half_u64 __attribute__((vector_size(VBYTES / 2)));
typedef uint8_t vec_quarter __attribute__((vector_size(VBYTES / 4)));
/* The same in memory: any address, any declared type. */
typedef uint32_t vec_at __attribute__((vector_size(VBYTES), aligned(1), may_alias));
typedef uint16_t vec_half_at __attribute__((vector_size(VBYTES / 2), aligned(1), may_alias));
typedef uint8_t vec_quarter_at __attribute__((vector_size(VBYTES / 4), aligned(1), may_alias));

#define SPLAT(type, x) ((type){0} + (x))

/* Bytes in memory that are entered at once, the vectors that they become, and their elements. */
#define V_IS_FP8(type) (abci_is_small(type) && (type) != ABC_F16)
#define V_STEP(type) (V_IS_FP8(type) ? (size_t)VBYTES / 4 : (size_t)VBYTES)
#define V_PARTS(type) ((type) == ABC_BF16 || (type) == ABC_F16 ? 2 : 1)
#define V_LANES(type) (V_STEP(type) / abci_element_size(type))

V_INLINE vec v_select(vec mask, vec a, vec b)
{
    return (a & mask) | (b & ~mask);
}

V_INLINE vec v_flip(abc_type type, vec v)
{
    if (!abci_is_float(type))
        return ~v;
    if (type == ABC_F64)
        return (vec)((vec_u64)v ^ SPLAT(vec_u64, UINT64_C(1) << 63));
    return v ^ SPLAT(vec, UINT32_C(1) << 31);
}

/* 1 in the lanes that are not 0. */
V_INLINE vec v_truth(size_t size, vec v)
{
    switch (size) {
    case 1:
        return (vec)((vec_u8)((vec_u8)v != 0) & SPLAT(vec_u8, 1));
    case 2:
        return (vec)((vec_u16)((vec_u16)v != 0) & SPLAT(vec_u16, 1));
    case 4:
        return (vec)(v != 0) & SPLAT(vec, 1);
    default:
        return (vec)((vec_u64)((vec_u64)v != 0) & SPLAT(vec_u64, 1));
    }
}

/* What abci_small_widen and abci_small_round do. Sizes have no sign, so that signed comparisons serve. */
V_INLINE vec v_small_widen(abc_type type, vec raw)
{
    const struct abci_small s = abci_small_of(type);
    vec size = raw & ((1u << s.sign_at) - 1), sign = raw >> s.sign_at << 31, wide = size << (23 - s.m);
    vec denormal = (vec)((vec_f32)(wide + s.normal) - (vec_f32)SPLAT(vec, s.normal));
    vec normal = v_select((vec)((vec_i32)size < SPLAT(vec_i32, (int32_t)s.top)), wide + s.rebase, wide | 0x7f800000u);
    return sign | v_select((vec)((vec_i32)size < SPLAT(vec_i32, 1 << s.m)), denormal, normal);
}

V_INLINE vec v_small_round(abc_type type, vec v)
{
    const struct abci_small s = abci_small_of(type);
    const unsigned shift = 23 - s.m;
    vec size = v & 0x7fffffffu, sign = v >> 31 << s.sign_at;
    vec denormal = (vec)((vec_f32)size + (vec_f32)SPLAT(vec, s.magic)) - s.magic;
    vec normal = (size - s.rebase + ((1u << (shift - 1)) - 1) + ((size >> shift) & 1u)) >> shift;
    vec rounded = v_select((vec)((vec_i32)size < SPLAT(vec_i32, (int32_t)s.normal)), denormal, normal);
    rounded = v_select((vec)((vec_i32)rounded < SPLAT(vec_i32, (int32_t)s.top)), rounded, SPLAT(vec, s.top));
    return sign | v_select((vec)((vec_i32)size > SPLAT(vec_i32, 0x7f800000)), SPLAT(vec, s.quiet), rounded);
}

/* Does the conversion take many instructions? */
#ifdef V_F16_WIDEN
#define V_LONG(type) V_IS_FP8(type)
#else
#define V_LONG(type) abci_is_small(type)
#define V_F16_WIDEN(half) v_small_widen(ABC_F16, __builtin_convertvector(half, vec))
#define V_F16_ROUND(v) __builtin_convertvector(v_small_round(ABC_F16, v), vec_half)
#define V_F16_JOIN(a, b) ((vec)(vec_u64){(uint64_t)(a), (uint64_t)(b)}) /* of 8 bytes each */
#endif

/* Every NaN made quiet, as abci_bf16_round does. Compared as signed integers: the sign bit is masked away. */
V_INLINE vec v_quiet(vec v)
{
    return v | ((vec)((vec_i32)(v & 0x7fffffffu) > SPLAT(vec_i32, 0x7f800000)) & (uint32_t)ABCI_BF16_QUIET << 16);
}

#ifndef V_BF16_WIDEN
#define V_BF16_WIDEN(raw, part) ((part) ? (vec)((raw)&0xffff0000u) : (vec)((raw) << 16))
#define V_BF16_CUT(even, odd) v_bf16_cut(even, odd)
#endif

/* The upper halves of two vectors, in turn. */
V_INLINE vec v_bf16_cut(vec even, vec odd)
{
    return even >> 16 | (odd & 0xffff0000u);
}

/*
 * abci_bf16_round for the lanes of two vectors, on halves: the upper ones, plus one where the lower one is above the middle, or at
 * it while the upper one is odd. No NaN needs care: it is an operand's or the processor's own, so its lower half is zero, and any
 * arithmetic has made it quiet.
 */
#ifndef V_BF16_ROUND
#define V_BF16_ROUND(even, odd) v_bf16_round(even, odd)
V_INLINE vec v_bf16_round(vec even, vec odd)
{
    vec_u16 high = (vec_u16)v_bf16_cut(even, odd), low = (vec_u16)(odd << 16 | (even & 0xffffu));
    vec_i16 above = (vec_i16)((low | (high & SPLAT(vec_u16, 1))) ^ SPLAT(vec_u16, 0x8000)); /* compared as signed */
    return (vec)(high - (vec_u16)(above > SPLAT(vec_i16, 0)));
}
#endif

/* What comes in is a number of this kind, or a truth, or turned over. */
V_INLINE vec v_admit(abc_type type, abc_op op, vec v)
{
    if (abci_is_logical(op))
        v = v_truth(abci_element_size(type), v);
    return op == ABC_MAX ? v_flip(type, v) : v;
}

/* `part` is 0 or, of a type that makes two vectors, 1. */
V_INLINE vec v_enter(abc_type type, abc_op op, const char *from, int part)
{
    vec v;
    if (type == ABC_BF16)
        v = V_BF16_WIDEN(*(const vec_at *)from, part);
    else if (type == ABC_F16)
        v = V_F16_WIDEN((vec_half) * (const vec_half_at *)(from + part * (VBYTES / 2)));
    else if (V_IS_FP8(type))
        v = v_small_widen(type, __builtin_convertvector(*(const vec_quarter_at *)from, vec));
    else
        v = *(const vec_at *)from;
    return v_admit(type, op, v);
}

/* Elements of 8 or 16 bits in a word; of f16 there is no second part. */
V_INLINE vec v_enter_word(abc_type type, abc_op op, uint64_t word, int part)
{
    const vec raw = (vec)(vec_u64){word};
    vec v = raw;
    if (type == ABC_BF16)
        v = V_BF16_WIDEN(raw, part);
    else if (type == ABC_F16)
        v = V_F16_WIDEN((vec_half)(vec_half_u64){word});
    return v_admit(type, op, v);
}

V_INLINE vec v_min(abc_type type, vec a, vec b)
{
    switch (type) {
    case ABC_I8:
        return v_select((vec)((vec_i8)a < (vec_i8)b), a, b);
    case ABC_U8:
        return v_select((vec)((vec_u8)a < (vec_u8)b), a, b);
    case ABC_I16:
        return v_select((vec)((vec_i16)a < (vec_i16)b), a, b);
    case ABC_U16:
        return v_select((vec)((vec_u16)a < (vec_u16)b), a, b);
    case ABC_I32:
        return v_select((vec)((vec_i32)a < (vec_i32)b), a, b);
    case ABC_U32:
        return v_select((vec)(a < b), a, b);
    case ABC_I64:
        return v_select((vec)((vec_i64)a < (vec_i64)b), a, b);
    case ABC_U64:
        return v_select((vec)((vec_u64)a < (vec_u64)b), a, b);
    case ABC_F64:
        return (vec)V_MIN_F64((vec_f64)a, (vec_f64)b) | (vec)V_MIN_F64((vec_f64)b, (vec_f64)a);
    default:
        return (vec)V_MIN_F32((vec_f32)a, (vec_f32)b) | (vec)V_MIN_F32((vec_f32)b, (vec_f32)a);
    }
}

V_INLINE vec v_add(abc_type type, vec a, vec b)
{
    if (type == ABC_F64)
        return (vec)((vec_f64)a + (vec_f64)b);
    if (abci_is_float(type))
        return (vec)((vec_f32)a + (vec_f32)b);
    switch (abci_element_size(type)) {
    case 1:
        return (vec)((vec_u8)a + (vec_u8)b);
    case 2:
        return (vec)((vec_u16)a + (vec_u16)b);
    case 4:
        return a + b;
    default:
        return (vec)((vec_u64)a + (vec_u64)b);
    }
}

V_INLINE vec v_multiply(abc_type type, vec a, vec b)
{
    if (type == ABC_F64)
        return (vec)((vec_f64)a * (vec_f64)b);
    if (abci_is_float(type))
        return (vec)((vec_f32)a * (vec_f32)b);
    switch (abci_element_size(type)) {
    case 1:
        return (vec)((vec_u8)a * (vec_u8)b);
    case 2:
        return (vec)((vec_u16)a * (vec_u16)b);
    case 4:
        return a * b;
    default:
        return (vec)((vec_u64)a * (vec_u64)b);
    }
}

V_INLINE vec v_fold(abc_type type, abc_op op, vec a, vec b)
{
    switch (op) {
    case ABC_MIN:
    case ABC_MAX:
        return v_min(type, a, b);
    case ABC_BAND:
    case ABC_LAND:
        return a & b;
    case ABC_BOR:
    case ABC_LOR:
        return a | b;
    case ABC_BXOR:
    case ABC_LXOR:
        return a ^ b;
    case ABC_PROD:
        return v_multiply(type, a, b);
    default:
        return v_add(type, a, b);
    }
}

/*
 * Integers go through floats of more than twice their bits. That is exact: a quotient of integers is never so near to the next
 * integer that it would be rounded up to it.
 */
V_INLINE vec v_divide(abc_type type, vec v, int nranks)
{
    switch (type) {
    case ABC_I16:
        return (vec) __builtin_convertvector(__builtin_convertvector((vec_i16)v, vec_wide2) / (float)nranks, vec_i16);
    case ABC_U16:
        return (vec) __builtin_convertvector(__builtin_convertvector((vec_u16)v, vec_wide2) / (float)nranks, vec_u16);
    case ABC_I32:
        return (vec) __builtin_convertvector(__builtin_convertvector((vec_i32)v, vec_wide) / (double)nranks, vec_i32);
    case ABC_U32:
        return __builtin_convertvector(__builtin_convertvector(v, vec_wide) / (double)nranks, vec);
    case ABC_F64:
        return (vec)((vec_f64)v / (double)nranks);
    default:
        return (vec)((vec_f32)v / (float)nranks);
    }
}

V_INLINE vec v_finish(abc_type type, abc_op op, vec v, int nranks)
{
    if (op == ABC_MAX)
        return v_flip(type, v);
    return op == ABC_AVG ? v_divide(type, v, nranks) : v;
}

/* As it lies in memory, from the vectors of all parts; not fp8. What a minimum picks needs no rounding. */
V_INLINE vec v_narrow(abc_type type, abc_op op, const vec *parts)
{
    if (type == ABC_BF16)
        return op == ABC_MIN || op == ABC_MAX ? V_BF16_CUT(parts[0], parts[1]) : (vec)V_BF16_ROUND(parts[0], parts[1]);
    return type == ABC_F16 ? V_F16_JOIN(V_F16_ROUND(parts[0]), V_F16_ROUND(parts[1])) : parts[0];
}

V_INLINE uint64_t v_leave_word(abc_type type, abc_op op, const vec *parts)
{
    return type == ABC_F16 ? ((vec_half_u64)V_F16_ROUND(parts[0]))[0] : ((vec_u64)v_narrow(type, op, parts))[0];
}

V_INLINE void v_store(abc_type type, abc_op op, bool stream, char *to, char *to2, const vec *parts)
{
    if (V_IS_FP8(type)) { /* too short to stream */
        vec_quarter quarter = __builtin_convertvector(v_small_round(type, parts[0]), vec_quarter);
        *(vec_quarter_at *)to = quarter;
        if (to2)
            *(vec_quarter_at *)to2 = quarter;
        return;
    }
    for (int half = 0; type == ABC_F16 && !stream && half < 2; half++) { /* the conversion's own stores are quicker than joining */
        vec_half v = (vec_half)V_F16_ROUND(parts[half]);
        *(vec_half_at *)(to + half * (VBYTES / 2)) = v;
        if (to2)
            *(vec_half_at *)(to2 + half * (VBYTES / 2)) = v;
    }
    if (type == ABC_F16 && !stream)
        return;
    vec v = v_narrow(type, op, parts);
    if (stream)
        V_STREAM(to, v);
    else
        *(vec_at *)to = v;
    if (to2)
        *(vec_at *)to2 = v;
}
