/*
 * exchange.c - a communicator created over a Python object: its methods put(key, value), wait(key, seconds) and get(key) stand for
 * an abc_exchange. The library calls them during creation, on the creating thread, which takes the GIL for them. What a method
 * raises becomes the cause of the exception that the creation ends with.
 */
#include "ext.h"

#include <string.h>

/* Keep the exception that is set; the status that it means to the library. */
static int failed(struct abcpy_exchange *e)
{
    int status = PyErr_ExceptionMatches(PyExc_TimeoutError) ? ABC_ERR_TIMEOUT : ABC_ERR_SYSTEM;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    if (e->failure)
        Py_XDECREF(value);
    else
        e->failure = value;
    return status;
}

static int exchange_put(void *context, const char *key, const void *value, size_t length)
{
    struct abcpy_exchange *e = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *done = PyObject_CallMethod(e->object, "put", "sy#", key, (const char *)value, (Py_ssize_t)length);
    int status = done ? ABC_OK : failed(e);
    Py_XDECREF(done);
    PyGILState_Release(gil);
    return status;
}

static int exchange_wait(void *context, const char *key, double timeout)
{
    struct abcpy_exchange *e = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *done = PyObject_CallMethod(e->object, "wait", "sd", key, timeout);
    int status = done ? ABC_OK : failed(e);
    Py_XDECREF(done);
    PyGILState_Release(gil);
    return status;
}

static int copy_out(PyObject *got, void *value, size_t *length)
{
    char *bytes;
    Py_ssize_t count;
    if (PyBytes_AsStringAndSize(got, &bytes, &count) != 0)
        return -1;
    if ((size_t)count > *length) {
        abcpy_raise(ABC_ERR_ARGUMENT, "the exchange gave %zd bytes where at most %zu were put", count, *length);
        return -1;
    }
    memcpy(value, bytes, (size_t)count);
    *length = (size_t)count;
    return 0;
}

static int exchange_get(void *context, const char *key, void *value, size_t *length)
{
    struct abcpy_exchange *e = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *got = PyObject_CallMethod(e->object, "get", "s", key);
    int status = got && copy_out(got, value, length) == 0 ? ABC_OK : failed(e);
    Py_XDECREF(got);
    PyGILState_Release(gil);
    return status;
}

void abcpy_exchange_open(struct abcpy_exchange *e, PyObject *object)
{
    abc_exchange_init(&e->table);
    e->table.ctx = e;
    e->table.put = exchange_put;
    e->table.wait = exchange_wait;
    e->table.get = exchange_get;
    e->object = object;
    e->failure = NULL;
}

void abcpy_exchange_close(struct abcpy_exchange *e)
{
    if (e->failure && PyErr_Occurred()) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        PyException_SetCause(value, Py_NewRef(e->failure));
        PyErr_Restore(type, value, trace);
    }
    Py_CLEAR(e->failure);
}
