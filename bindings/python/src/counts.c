/*
 * counts.c - the lists of collectives with a count for each rank: from Python sequences of integers to what an abc_call takes, and
 * whether the blocks that they describe lie inside the array. The library copies the lists when the call is made and checks the
 * rest (overlaps, sums, what the ranks must agree on); only the arrays' sizes it cannot know.
 *
 * All lists of a call lie in one piece of memory, which the abcpy_call owns. Cost: one allocation and a walk over the sequences.
 */
#include "ext.h"

#include <string.h>

static const char *const names[ABCPY_LISTS] = {"in_counts", "in_offsets", "out_counts", "out_offsets"};

/* Any sequence of integers, also a NumPy array or a tensor: what has __index__. */
static int take_list(PyObject *object, const char *name, int size, uint64_t *to)
{
    PyObject *items = PySequence_Tuple(object);
    int failed = 0;
    if (!items || PyTuple_Size(items) != size) {
        if (!items && !PyErr_ExceptionMatches(PyExc_TypeError))
            return -1;
        PyErr_Clear();
        abcpy_raise_type("%s is %R; it must be a sequence of %d integers, one for each rank", name, object, size);
        Py_XDECREF(items);
        return -1;
    }
    for (int r = 0; r < size && !failed; r++) {
        PyObject *number = PyNumber_Index(PyTuple_GetItem(items, r));
        to[r] = number ? PyLong_AsUnsignedLongLong(number) : 0;
        failed = !number || (to[r] == UINT64_MAX && PyErr_Occurred());
        Py_XDECREF(number);
        if (failed) {
            PyErr_Clear();
            abcpy_raise_type("%s[%d] is %R; it must be an integer of 0 or more", name, r, PyTuple_GetItem(items, r));
        }
    }
    Py_DECREF(items);
    return failed ? -1 : 0;
}

int abcpy_counts_take(const char *collective, unsigned lists, int size, const struct abcpy_arguments *a, struct abcpy_call *c)
{
    const uint64_t **place[ABCPY_LISTS] = {&c->call.in_counts, &c->call.in_offsets, &c->call.out_counts, &c->call.out_offsets};
    c->lists = PyMem_Malloc(ABCPY_LISTS * (size_t)size * sizeof *c->lists);
    if (!c->lists)
        return PyErr_NoMemory(), -1;
    for (int i = 0; i < ABCPY_LISTS; i++) {
        PyObject *given = a->at[ABCPY_IN_COUNTS + i];
        uint64_t *list = c->lists + (size_t)i * (size_t)size;
        if (!(lists & 1u << i))
            continue;
        if (!given && i % 2 == 0) /* counts are due, offsets are not */
            return abcpy_raise_type("%s: %s is missing: one count for each of the %d ranks", collective, names[i], size), -1;
        if (given && take_list(given, names[i], size, list) != 0)
            return -1;
        *place[i] = given ? list : NULL;
    }
    return 0;
}

int abcpy_counts_fit(const char *collective, bool input, int size, const struct abcpy_call *c)
{
    const uint64_t *counts = input ? c->call.in_counts : c->call.out_counts;
    const uint64_t *offsets = input ? c->call.in_offsets : c->call.out_offsets;
    const uint64_t held = input ? c->in.count : c->out.count;
    uint64_t next = 0;
    for (int r = 0; r < size; r++) {
        uint64_t at = offsets ? offsets[r] : next;
        if (counts[r] > 0 && (at > held || counts[r] > held - at)) {
            abcpy_raise(ABC_ERR_ARGUMENT,
                        "%s: the block of rank %d has %llu elements from %llu on, but the %s has only %llu; see %s and %s",
                        collective, r, (unsigned long long)counts[r], (unsigned long long)at, input ? "input" : "output",
                        (unsigned long long)held, names[input ? 0 : 2], names[input ? 1 : 3]);
            return -1;
        }
        next = at + counts[r];
    }
    return 0;
}

int abcpy_counts_refuse(const char *collective, const struct abcpy_arguments *a)
{
    for (int i = 0; i < ABCPY_LISTS; i++)
        if (a->at[ABCPY_IN_COUNTS + i])
            return abcpy_raise(ABC_ERR_ARGUMENT, "%s has blocks of equal size and takes no %s", collective, names[i]), -1;
    return 0;
}
