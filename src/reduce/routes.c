/*
 * routes.c - stage 5: the one table of which operations a type has, and which kernel does each. Where the bits are the same one
 * kernel serves many: a sum of unsigned integers is that of signed ones, a complex sum adds twice as many floats, bitwise
 * operations know only bytes. Constant data; any thread.
 */
#include "reduce/family.h"

#define AS(TYPE, OP, BY, BY_OP, SHIFT) [ABC_##TYPE][ABC_##OP] = {ABCI_ROW(ABC_##BY, ABC_##BY_OP), SHIFT, true}
#define OWN(TYPE, OP) AS(TYPE, OP, TYPE, OP, 0)
#define FLOAT(TYPE) OWN(TYPE, SUM), OWN(TYPE, AVG), OWN(TYPE, PROD), OWN(TYPE, MIN), OWN(TYPE, MAX)
/* SIGNED: the type of this size whose wrapped sums and truth are the same. SHIFT: bytes of an element. */
#define INTEGER(TYPE, SIGNED, SHIFT)                                                                                               \
    OWN(TYPE, MIN), OWN(TYPE, MAX), OWN(TYPE, AVG), AS(TYPE, SUM, SIGNED, SUM, 0), AS(TYPE, PROD, SIGNED, PROD, 0),                \
        AS(TYPE, LAND, SIGNED, LAND, 0), AS(TYPE, LOR, SIGNED, LOR, 0), AS(TYPE, LXOR, SIGNED, LXOR, 0),                           \
        AS(TYPE, BAND, I8, BAND, SHIFT), AS(TYPE, BOR, I8, BOR, SHIFT), AS(TYPE, BXOR, I8, BXOR, SHIFT)
#define COMPLEX(TYPE, PART) AS(TYPE, SUM, PART, SUM, 1), AS(TYPE, AVG, PART, AVG, 1), OWN(TYPE, PROD)
#define PAIR(TYPE) OWN(TYPE, MINLOC), OWN(TYPE, MAXLOC)

const struct abci_route abci_routes[ABC_TYPE_COUNT][ABC_OP_COUNT] = {
    FLOAT(F32),
    FLOAT(F64),
    FLOAT(BF16),
    FLOAT(F16),
    FLOAT(FP8_E4M3),
    FLOAT(FP8_E5M2),
    INTEGER(I8, I8, 0),
    INTEGER(U8, I8, 0),
    INTEGER(I16, I16, 1),
    INTEGER(U16, I16, 1),
    INTEGER(I32, I32, 2),
    INTEGER(U32, I32, 2),
    INTEGER(I64, I64, 3),
    INTEGER(U64, I64, 3),
    AS(BOOL, SUM, I8, LOR, 0),
    AS(BOOL, MAX, I8, LOR, 0),
    AS(BOOL, LOR, I8, LOR, 0),
    AS(BOOL, BOR, I8, LOR, 0),
    AS(BOOL, PROD, I8, LAND, 0),
    AS(BOOL, MIN, I8, LAND, 0),
    AS(BOOL, LAND, I8, LAND, 0),
    AS(BOOL, BAND, I8, LAND, 0),
    AS(BOOL, LXOR, I8, LXOR, 0),
    AS(BOOL, BXOR, I8, LXOR, 0),
    COMPLEX(COMPLEX64, F32),
    COMPLEX(COMPLEX128, F64),
    PAIR(F32_I32),
    PAIR(F64_I32),
    PAIR(I32_I32),
};

bool abci_reduce_has(abc_type type, abc_op op)
{
    return (unsigned)type < ABC_TYPE_COUNT && (unsigned)op < ABC_OP_COUNT && abci_routes[type][op].exists;
}

/* Whole numbers and what only picks an operand have the same bits in any order. */
bool abci_reduce_exact(abc_type type, abc_op op)
{
    bool picks = op == ABC_MIN || op == ABC_MAX || op == ABC_MINLOC || op == ABC_MAXLOC;
    return picks || (type >= ABC_I8 && type <= ABC_BOOL) || type == ABC_I32;
}

bool abci_reduce_narrow(abc_type type)
{
    return abci_is_narrow(type);
}
