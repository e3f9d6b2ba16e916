/*
 * group.c - groups of calls: what `with comm.group():` begins and ends. The library keeps the calls of a thread's group; here their
 * arrays are kept, until the group is over. A communicator counts each of them as a user, so that nobody closes it in between.
 */
#include "ext.h"

#include <unistd.h>

/* A blocking call of the thread's group. */
struct kept {
    struct abcpy_call call;
    struct abcpy_comm *comm; /* counted */
    struct kept *next;
};
static __thread int depth;
static __thread struct kept *first;

bool abcpy_in_group(void)
{
    return depth > 0;
}

PyObject *abcpy_group_run(struct abcpy_comm *c, const struct abcpy_arguments *arguments)
{
    struct kept *k = PyMem_Calloc(1, sizeof *k);
    int status;
    if (!k || abcpy_call_take(c->rank, c->size, arguments, &k->call) != 0) {
        if (!k)
            PyErr_NoMemory();
        PyMem_Free(k);
        abcpy_comm_leave(c);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = abc_run(c->comm, &k->call.call);
    Py_END_ALLOW_THREADS;
    if (status != ABC_OK) {
        abcpy_comm_raise(c, status);
        abcpy_call_release(&k->call);
        PyMem_Free(k);
        abcpy_comm_leave(c);
        return NULL;
    }
    k->comm = (struct abcpy_comm *)Py_NewRef((PyObject *)c);
    k->next = first;
    first = k;
    return k->call.call.received ? Py_NewRef(Py_None) : abcpy_call_result(&k->call);
}

/* The group is over: the arrays are the program's again. Releasing may run Python code, which may begin another group. */
static void release(struct kept *k, bool failed)
{
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    while (k) {
        struct kept *next = k->next;
        struct abcpy_comm *c = k->comm;
        if (failed && c->comm && abc_comm_status(c->comm) != ABC_OK)
            c->told = true;
        abcpy_call_release(&k->call);
        abcpy_comm_leave(c);
        Py_DECREF((PyObject *)c);
        PyMem_Free(k);
        k = next;
    }
    PyErr_Restore(error, value, trace);
}

static PyObject *group_start(PyObject *module, PyObject *unused)
{
    if (abcpy_in_callback())
        return abcpy_raise(ABC_ERR_STATE, "a callback may start operations, but not wait for a group of them");
    int status = abc_group_start();
    if (status != ABC_OK)
        return abcpy_raise_last(status);
    depth++;
    Py_RETURN_NONE;
}

static PyObject *leave(int (*how)(void))
{
    int status, outer = depth > 0 ? depth - 1 : 0;
    struct kept *over = outer == 0 ? first : NULL;
    depth = outer; /* before the end: callbacks that it runs are in no group */
    if (outer == 0)
        first = NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = how();
    Py_END_ALLOW_THREADS;
    if (status != ABC_OK)
        abcpy_raise_last(status);
    release(over, status != ABC_OK);
    return status == ABC_OK ? Py_NewRef(Py_None) : NULL;
}

static PyObject *group_end(PyObject *module, PyObject *unused)
{
    return leave(abc_group_end);
}

static PyObject *group_drop(PyObject *module, PyObject *unused)
{
    return leave(abc_group_drop);
}

static PyObject *in_group(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(abcpy_in_group());
}

int abcpy_group_add(PyObject *module)
{
    static PyMethodDef functions[] = {{"_group_start", group_start, METH_NOARGS, "Begin a group of this thread's calls."},
                                      {"_group_end", group_end, METH_NOARGS, "Start what the group has kept, and wait for it."},
                                      {"_group_drop", group_drop, METH_NOARGS, "Leave the group and start nothing."},
                                      {"_in_group", in_group, METH_NOARGS, "Has this thread a group open?"},
                                      {NULL}};
    return PyModule_AddFunctions(module, functions);
}
