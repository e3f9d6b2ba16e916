/*
 * errors.c - one exception class for each status, made from one table, all derived from abcomm.Error. The texts are the library's
 * own: abc_last_error of the calling thread, right after the call that failed.
 */
#include "ext.h"

#include <stdarg.h>

struct row {
    int status;
    const char *name;
    PyObject **builtin; /* what Python programs already catch for this, or NULL */
};
static const struct row rows[] = {
    {ABC_ERR_ARGUMENT, "ArgumentError", &PyExc_ValueError},
    {ABC_ERR_HANDLE, "HandleError", &PyExc_RuntimeError},
    {ABC_ERR_MEMORY, "OutOfMemoryError", &PyExc_MemoryError},
    {ABC_ERR_SYSTEM, "SystemCallError", NULL},
    {ABC_ERR_ENVIRONMENT, "LaunchError", &PyExc_RuntimeError},
    {ABC_ERR_ADDRESS, "AddressError", &PyExc_ValueError},
    {ABC_ERR_AUTH, "AuthenticationError", NULL},
    {ABC_ERR_TIMEOUT, "TimeoutError", &PyExc_TimeoutError},
    {ABC_ERR_PEER, "PeerError", &PyExc_ConnectionError},
    {ABC_ERR_MISMATCH, "MismatchError", NULL},
    {ABC_ERR_ABORTED, "AbortedError", NULL},
    {ABC_ERR_STATE, "StateError", &PyExc_RuntimeError},
    {ABC_ERR_UNSUPPORTED, "UnsupportedError", &PyExc_NotImplementedError},
    {ABC_ERR_PLAN, "PlanError", &PyExc_ValueError},
    {ABC_ERR_VERSION, "VersionError", NULL},
    {ABC_ERR_INTERNAL, "InternalError", NULL},
};
enum { ROWS = sizeof rows / sizeof rows[0] };
static PyObject *base, *classes[ROWS], *argument_type_error;

static PyObject *make(PyObject *module, const char *name, PyObject *bases, int status)
{
    char full[64], doc[512];
    PyOS_snprintf(full, sizeof full, "abcomm.%s", name);
    if (status == 0)
        PyOS_snprintf(doc, sizeof doc, "Base of all errors of this package. `status` and `code` tell the library's status.");
    else
        PyOS_snprintf(doc, sizeof doc, "%s: %s. What to do: %s.", abc_status_name(status), abc_status_text(status),
                      abc_status_remedy(status));
    PyObject *dict = Py_BuildValue("{s:s,s:i}", "status", status ? abc_status_name(status) : "", "code", status);
    PyObject *made = dict ? PyErr_NewExceptionWithDoc(full, doc, bases, dict) : NULL;
    Py_XDECREF(dict);
    if (made && PyModule_AddObjectRef(module, name, made) != 0)
        Py_CLEAR(made);
    return made;
}

static PyObject *make_under(PyObject *module, const char *name, PyObject *parent, PyObject *builtin, int status)
{
    PyObject *bases = builtin ? PyTuple_Pack(2, parent, builtin) : PyTuple_Pack(1, parent);
    PyObject *made = bases ? make(module, name, bases, status) : NULL;
    Py_XDECREF(bases);
    return made;
}

int abcpy_errors_add(PyObject *module)
{
    base = make(module, "Error", PyExc_Exception, 0);
    if (!base)
        return -1;
    for (int i = 0; i < ROWS; i++) {
        classes[i] = make_under(module, rows[i].name, base, rows[i].builtin ? *rows[i].builtin : NULL, rows[i].status);
        if (!classes[i])
            return -1;
    }
    argument_type_error =
        make_under(module, "ArgumentTypeError", abcpy_error_class(ABC_ERR_ARGUMENT), PyExc_TypeError, ABC_ERR_ARGUMENT);
    return argument_type_error ? 0 : -1;
}

PyObject *abcpy_error_class(int status)
{
    for (int i = 0; i < ROWS; i++)
        if (rows[i].status == status)
            return classes[i];
    return base;
}

PyObject *abcpy_raise(int status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyErr_FormatV(abcpy_error_class(status), format, values);
    va_end(values);
    return NULL;
}

PyObject *abcpy_raise_type(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    PyErr_FormatV(argument_type_error, format, values);
    va_end(values);
    return NULL;
}

PyObject *abcpy_raise_last(int status)
{
    PyErr_SetString(abcpy_error_class(status), abc_last_error());
    return NULL;
}
