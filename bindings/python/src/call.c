/*
 * call.c - from the arguments of a Python call to an abc_call: which arrays a collective has, how many elements each must hold,
 * what "in place" means. Sizes are checked here because arrays know theirs; everything else the library checks itself.
 *
 * A new collective is one row of `rows`; its number is asked of the library by name when the module is loaded.
 */
#include "ext.h"

#include <string.h>

/* How much an array holds: a block, one for each rank, or one for each rank by the list of counts; and on which ranks it exists. */
enum { NONE, ONE, ALL, LIST, ROOT_ONE, ROOT_ALL, ROOT_LIST };
struct row {
    const char *name;
    unsigned char in, out;
    bool reduces, rooted; /* rooted: has a root, or the other rank of a message */
};
static const struct row rows[] = {
    {"allreduce", ONE, ONE, true, false},
    {"reduce_scatter", ALL, ONE, true, false},
    {"allgather", ONE, ALL, false, false},
    {"broadcast", ROOT_ONE, ONE, false, true},
    {"barrier", NONE, NONE, false, false},
    {"reduce", ONE, ROOT_ONE, true, true},
    {"gather", ONE, ROOT_ALL, false, true},
    {"scatter", ROOT_ALL, ONE, false, true},
    {"alltoall", ALL, ALL, false, false},
    {"scan", ONE, ONE, true, false},
    {"exscan", ONE, ONE, true, false},
    {"send", ONE, NONE, false, true},
    {"recv", NONE, ONE, false, true},
    {"gatherv", ONE, ROOT_LIST, false, true},
    {"scatterv", ROOT_LIST, ONE, false, true},
    {"allgatherv", ONE, LIST, false, false},
    {"reduce_scatterv", LIST, ONE, true, false},
    {"alltoallv", LIST, LIST, false, false},
};
enum { ROWS = sizeof rows / sizeof rows[0], NUMBERS = ABC_RECV + 1 };
static const struct row *by_number[NUMBERS];
static PyObject *ops, *collectives; /* dict: name to number */
static PyTypeObject *received_type;

static int add_name(PyObject *dict, const char *name, int number)
{
    PyObject *value = PyLong_FromLong(number);
    int failed = value ? PyDict_SetItemString(dict, name, value) : -1;
    Py_XDECREF(value);
    return failed;
}

static int add_received(PyObject *module)
{
    static PyStructSequence_Field fields[] = {{"source", "The sender."},
                                              {"tag", "The message's tag."},
                                              {"count", "Elements of the message; what is behind them in the array is as it was."},
                                              {NULL, NULL}};
    static PyStructSequence_Desc desc = {"abcomm.Received", "What a receive has brought.", fields, 3};
    received_type = PyStructSequence_NewType(&desc);
    return received_type ? PyModule_AddObjectRef(module, "Received", (PyObject *)received_type) : -1;
}

int abcpy_calls_add(PyObject *module)
{
    const char *name;
    if (add_received(module) != 0)
        return -1;
    ops = PyDict_New();
    collectives = PyDict_New();
    if (!ops || !collectives)
        return -1;
    for (int i = 0; i < ABC_OP_USER && (name = abc_op_name((abc_op)i)) && *name != '?'; i++)
        if (add_name(ops, name, i) != 0)
            return -1;
    for (int i = 0; i < NUMBERS; i++)
        for (int r = 0; r < ROWS; r++)
            if (strcmp(rows[r].name, abc_collective_name((abc_collective)i)) == 0) {
                by_number[i] = &rows[r];
                if (add_name(collectives, rows[r].name, i) != 0)
                    return -1;
            }
    return PyModule_AddObjectRef(module, "ops", ops) || PyModule_AddObjectRef(module, "collectives", collectives) ? -1 : 0;
}

/* A number, or a name of the dict; -1 with an exception. */
static long number_of(PyObject *object, PyObject *dict, const char *what)
{
    PyObject *value = object;
    if (PyUnicode_Check(object)) {
        value = PyDict_GetItemWithError(dict, object);
        if (!value) {
            PyObject *known = PyErr_Occurred() ? NULL : PyDict_Keys(dict);
            if (known)
                abcpy_raise(ABC_ERR_ARGUMENT, "%s %R is unknown; there are %R", what, object, known);
            Py_XDECREF(known);
            return -1;
        }
    }
    if (!PyLong_Check(value))
        return abcpy_raise_type("%s %R is neither a name nor a number", what, object), -1;
    long number = PyLong_AsLong(value);
    if (number < 0 && !PyErr_Occurred())
        abcpy_raise(ABC_ERR_ARGUMENT, "%s %ld is unknown", what, number);
    return number;
}

/* ---- arguments ---- */

static int slot_of(PyObject *keyword)
{
    static const char *const names[ABCPY_ARGUMENTS] = {"collective", "array",      "out",        "op",         "root",
                                                       "timeout",    "algorithm",  "tag",        "preserve",   "callback",
                                                       "in_counts",  "in_offsets", "out_counts", "out_offsets"};
    for (int i = 0; i < ABCPY_ARGUMENTS; i++)
        if (PyUnicode_CompareWithASCIIString(keyword, names[i]) == 0)
            return i;
    abcpy_raise_type("there is no argument %R", keyword);
    return -1;
}

int abcpy_arguments_take(PyObject *const *args, Py_ssize_t nargs, PyObject *keywords, struct abcpy_arguments *a)
{
    Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
    memset(a, 0, sizeof *a);
    if (nargs > ABCPY_ARGUMENTS)
        return abcpy_raise_type("%zd arguments were given, there are at most %d", nargs, ABCPY_ARGUMENTS), -1;
    for (Py_ssize_t i = 0; i < nargs + named; i++) {
        int slot = i < nargs ? (int)i : slot_of(PyTuple_GetItem(keywords, i - nargs));
        if (slot < 0)
            return -1;
        if (i >= nargs && slot < nargs)
            return abcpy_raise_type("argument %R was given twice", PyTuple_GetItem(keywords, i - nargs)), -1;
        a->at[slot] = args[i] == Py_None ? NULL : args[i];
    }
    return 0;
}

/* ---- sizes ---- */

struct place {
    int rank, size, root;
};

static bool exists(unsigned char extent, struct place p)
{
    return extent == ONE || extent == ALL || extent == LIST || (extent != NONE && p.rank == p.root);
}

static bool by_list(unsigned char extent)
{
    return extent == LIST || extent == ROOT_LIST;
}

static bool is_wide(unsigned char extent)
{
    return extent == ALL || extent == ROOT_ALL || by_list(extent);
}

static uint64_t counts_in(unsigned char extent, struct place p)
{
    return extent == ALL || extent == ROOT_ALL ? (uint64_t)p.size : 1;
}

/* The count, from the array that every rank has. */
static int set_count(const struct row *row, struct place p, bool has_in, struct abcpy_call *c)
{
    bool by_out = row->out == ONE || row->out == ALL || !has_in;
    const struct abcpy_array *a = by_out ? &c->out : &c->in;
    uint64_t factor = counts_in(by_out ? row->out : row->in, p);
    if (a->count % factor != 0) {
        abcpy_raise(ABC_ERR_ARGUMENT, "%s: the %s has %llu elements, which %d ranks cannot share evenly", row->name,
                    by_out ? "output" : "input", (unsigned long long)a->count, p.size);
        return -1;
    }
    c->call.count = a->count / factor;
    c->call.type = a->type;
    return 0;
}

static int check_types(const struct row *row, const struct abcpy_call *c)
{
    if (c->in.type == c->out.type)
        return 0;
    abcpy_raise_type("%s: the input is of type %s, the output of type %s; they must be the same", row->name,
                     abc_type_name(c->in.type), abc_type_name(c->out.type));
    return -1;
}

static int check_other(const struct row *row, struct place p, struct abcpy_call *c)
{
    uint64_t in = c->call.count * counts_in(row->in, p), out = c->call.count * counts_in(row->out, p);
    if (c->in.count == in && c->out.count == out)
        return 0;
    abcpy_raise(ABC_ERR_ARGUMENT,
                "%s: the input has %llu elements and the output %llu; for %d ranks and this output the input must have %llu",
                row->name, (unsigned long long)c->in.count, (unsigned long long)c->out.count, p.size,
                (unsigned long long)(c->out.count / counts_in(row->out, p) * counts_in(row->in, p)));
    return -1;
}

/* The array of one block beside one with a list: as long as the list says, where this rank has the list. */
static int set_single(const struct row *row, struct place p, bool has_in, bool has_out, struct abcpy_call *c)
{
    bool listed_in = by_list(row->in), given = listed_in ? has_out : has_in;
    const uint64_t *list = listed_in ? c->call.in_counts : c->call.out_counts;
    uint64_t held = listed_in ? c->out.count : c->in.count;
    if (list && given && held != list[p.rank]) {
        abcpy_raise(ABC_ERR_ARGUMENT, "%s: the %s has %llu elements, but %s[%d] is %llu", row->name, listed_in ? "output" : "input",
                    (unsigned long long)held, listed_in ? "in_counts" : "out_counts", p.rank, (unsigned long long)list[p.rank]);
        return -1;
    }
    c->call.count = given ? held : list[p.rank];
    return 0;
}

/* The same for a collective with a count for each rank; arrays of many blocks may be longer than what the lists name. */
static int set_counts(const struct row *row, struct place p, const struct abcpy_arguments *a, bool has_in, bool has_out,
                      struct abcpy_call *c)
{
    bool in = by_list(row->in) && has_in, out = by_list(row->out) && has_out;
    if (exists(row->in, p) && by_list(row->in) && !by_list(row->out) && !has_in)
        return abcpy_raise_type("%s: no input was given", row->name), -1;
    if (abcpy_counts_take(row->name, (in ? 3u : 0) | (out ? 12u : 0), p.size, a, c) != 0)
        return -1;
    if ((in && abcpy_counts_fit(row->name, true, p.size, c) != 0) || (out && abcpy_counts_fit(row->name, false, p.size, c) != 0))
        return -1;
    c->call.type = has_out ? c->out.type : c->in.type;
    return by_list(row->in) && by_list(row->out) ? 0 : set_single(row, p, has_in, has_out, c);
}

static int set_sizes(const struct row *row, struct place p, const struct abcpy_arguments *a, bool has_in, bool has_out,
                     struct abcpy_call *c)
{
    if (has_in && has_out && check_types(row, c) != 0)
        return -1;
    if (by_list(row->in) || by_list(row->out))
        return set_counts(row, p, a, has_in, has_out, c);
    return set_count(row, p, has_in, c) != 0 || (has_in && has_out && check_other(row, p, c) != 0) ? -1 : 0;
}

/* ---- arrays ---- */

static void set_pointers(const struct row *row, struct place p, bool has_in, bool has_out, struct abcpy_call *c)
{
    c->call.in = has_in ? c->in.data : NULL;
    c->call.out = has_out ? c->out.data : NULL;
    if (!has_in && exists(row->in, p))
        c->call.in = ABC_IN_PLACE;
}

/*
 * One array given where input and output are equally large: it is both; of a receive it is the output. Collectives whose input is
 * smaller (allgather) take the output alone; those whose output is smaller need both.
 */
static int take_arrays(const struct row *row, struct place p, const struct abcpy_arguments *a, struct abcpy_call *c)
{
    PyObject *in = a->at[ABCPY_IN], *out = a->at[ABCPY_OUT];
    bool same = is_wide(row->in) ? row->out == row->in : !is_wide(row->out);
    if (in && !out && same && exists(row->out, p)) {
        out = in;
        in = NULL;
    }
    if (in && out && !exists(row->in, p))
        in = NULL;
    if (out && !exists(row->out, p))
        out = NULL;
    if (exists(row->out, p) && !out) {
        abcpy_raise_type("%s: no output was given", row->name);
        return -1;
    }
    if (!exists(row->out, p) && !in) {
        abcpy_raise_type("%s: no input was given", row->name);
        return -1;
    }
    const char *what = !in && a->at[ABCPY_IN] ? "the array" : "the output";
    if (in && abcpy_array_take(in, "the input", false, &c->in) != 0)
        return -1;
    if (out && abcpy_array_take(out, what, true, &c->out) != 0)
        return -1;
    c->result = Py_NewRef(out ? out : Py_None);
    if (set_sizes(row, p, a, in != NULL, out != NULL, c) != 0)
        return -1;
    set_pointers(row, p, in != NULL, out != NULL, c);
    return 0;
}

static int take_options(const struct abcpy_arguments *a, struct abcpy_call *c)
{
    if (a->at[ABCPY_TIMEOUT]) {
        c->call.timeout = PyFloat_AsDouble(a->at[ABCPY_TIMEOUT]);
        if (c->call.timeout == -1.0 && PyErr_Occurred())
            return -1;
    }
    if (a->at[ABCPY_ALGORITHM]) {
        c->call.algorithm = PyUnicode_AsUTF8AndSize(a->at[ABCPY_ALGORITHM], NULL);
        if (!c->call.algorithm)
            return -1;
        c->algorithm = Py_NewRef(a->at[ABCPY_ALGORITHM]);
    }
    if (a->at[ABCPY_TAG]) {
        long tag = PyLong_AsLong(a->at[ABCPY_TAG]);
        if (tag == -1 && PyErr_Occurred())
            return -1;
        if (tag < INT32_MIN || tag > INT32_MAX)
            return abcpy_raise(ABC_ERR_ARGUMENT, "tag %ld does not fit 32 bits", tag), -1;
        c->call.tag = (int)tag;
    }
    if (a->at[ABCPY_PRESERVE]) {
        c->call.preserve = PyObject_IsTrue(a->at[ABCPY_PRESERVE]);
        if (c->call.preserve < 0)
            return -1;
    }
    return 0;
}

static int take_op(PyObject *object, struct abcpy_call *c)
{
    if (abcpy_op_number(object, &c->call.op)) {
        c->op = Py_NewRef(object);
        return 0;
    }
    long number = number_of(object, ops, "op");
    c->call.op = (abc_op)number;
    return number < 0 ? -1 : 0;
}

/* The root of a collective, or the other rank of a message. */
static int take_root(const struct row *row, int size, PyObject *object, struct abcpy_call *c)
{
    abc_collective kind = c->call.collective;
    const char *what = kind == ABC_SEND ? "destination" : kind == ABC_RECV ? "source" : "root";
    long root = PyLong_AsLong(object);
    if (root == -1 && PyErr_Occurred())
        return -1;
    if ((root < 0 || root >= size) && !(kind == ABC_RECV && root == ABC_ANY_SOURCE))
        return abcpy_raise(ABC_ERR_ARGUMENT, "%s: %s %ld is not a rank; there are %d", row->name, what, root, size), -1;
    c->call.root = (int)root;
    return 0;
}

static int take(int rank, int size, const struct abcpy_arguments *a, struct abcpy_call *c)
{
    long number = a->at[ABCPY_COLLECTIVE] ? number_of(a->at[ABCPY_COLLECTIVE], collectives, "collective") : -1;
    if (number < 0 || number >= NUMBERS || !by_number[number]) {
        if (!PyErr_Occurred())
            abcpy_raise(ABC_ERR_ARGUMENT, "no known collective was given; abcomm.collectives lists them");
        return -1;
    }
    const struct row *row = by_number[number];
    struct place p = {rank, size, 0};
    abc_call_init(&c->call, (abc_collective)number);
    if (row->reduces && a->at[ABCPY_OP] && take_op(a->at[ABCPY_OP], c) != 0)
        return -1;
    if (row->rooted && a->at[ABCPY_ROOT] && take_root(row, size, a->at[ABCPY_ROOT], c) != 0)
        return -1;
    p.root = c->call.root;
    c->call.received = number == ABC_RECV ? &c->received : NULL;
    if (!by_list(row->in) && !by_list(row->out) && abcpy_counts_refuse(row->name, a) != 0)
        return -1;
    if (row->in == NONE && row->out == NONE)
        c->result = Py_NewRef(Py_None);
    else if (take_arrays(row, p, a, c) != 0)
        return -1;
    return take_options(a, c);
}

int abcpy_call_take(int rank, int size, const struct abcpy_arguments *a, struct abcpy_call *c)
{
    c->in.has_view = c->out.has_view = false;
    c->in.owner = c->out.owner = c->result = c->algorithm = c->op = NULL;
    c->lists = NULL;
    if (take(rank, size, a, c) == 0)
        return 0;
    abcpy_call_release(c);
    return -1;
}

PyObject *abcpy_call_result(const struct abcpy_call *c)
{
    if (!c->call.received)
        return Py_NewRef(c->result);
    const unsigned long long number[] = {(unsigned long long)c->received.source, (unsigned long long)c->received.tag,
                                         (unsigned long long)c->received.count};
    PyObject *told = PyStructSequence_New(received_type);
    for (int i = 0; told && i < 3; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(number[i]);
        if (value)
            PyStructSequence_SetItem(told, i, value);
        else
            Py_CLEAR(told);
    }
    return told;
}

void abcpy_call_release(struct abcpy_call *c)
{
    abcpy_array_release(&c->in);
    abcpy_array_release(&c->out);
    Py_CLEAR(c->result);
    Py_CLEAR(c->algorithm);
    Py_CLEAR(c->op);
    PyMem_Free(c->lists);
    c->lists = NULL;
}
