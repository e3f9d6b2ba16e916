/*
 * op.c - operations that the program makes: abcomm.ScaledSum, a sum before which every rank's input is multiplied by a scalar of
 * its own; and UserOperation, a Python function, which the thread that drives an operation calls with the GIL. Operations in
 * progress keep the object alive; with the last reference its number is free again.
 */
#include "ext.h"

#include <unistd.h>

struct op {
    PyObject_HEAD abc_op number;
    long pid;           /* a forked child leaves it alone */
    PyObject *function; /* of a UserOperation; else NULL */
};
static PyTypeObject *op_type, *user_type;

/* The object of a number that is new; without memory the number is free again. */
static PyObject *op_make(PyTypeObject *type, abc_op number, PyObject *function)
{
    struct op *o = (struct op *)PyType_GenericAlloc(type, 0);
    if (!o) {
        abc_op_free(number);
        return NULL;
    }
    o->number = number;
    o->pid = (long)getpid();
    o->function = Py_XNewRef(function);
    return (PyObject *)o;
}

static PyObject *op_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"scalar", NULL};
    struct abcpy_array scalar;
    PyObject *object;
    abc_op number;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:ScaledSum", names, &object))
        return NULL;
    if (abcpy_array_take(object, "the scalar", false, &scalar) != 0)
        return NULL;
    if (scalar.count != 1) {
        abcpy_array_release(&scalar);
        return abcpy_raise(ABC_ERR_ARGUMENT, "the scalar has %llu elements; it must be one, of the type of the arrays",
                           (unsigned long long)scalar.count);
    }
    int status = abc_op_create_scaled(scalar.data, scalar.type, &number);
    abcpy_array_release(&scalar);
    return status == ABC_OK ? op_make(type, number, NULL) : abcpy_raise_last(status);
}

/* ---- a Python function ---- */

/* The exception that is set becomes the reason, and is shown as one that nobody can catch. */
static void give_up(PyObject *function)
{
    PyObject *error, *value, *trace, *text = NULL;
    const char *said = NULL;
    PyErr_Fetch(&error, &value, &trace);
    PyErr_NormalizeException(&error, &value, &trace);
    PyObject *kind = error ? PyType_GetName((PyTypeObject *)error) : NULL;
    if (kind)
        text = PyUnicode_FromFormat("%U: %S", kind, value ? value : Py_None);
    said = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    abc_op_fail(said ? said : "an exception without a text");
    PyErr_Clear();
    PyErr_Restore(error, value, trace);
    PyErr_WriteUnraisable(function);
    Py_XDECREF(kind);
    Py_XDECREF(text);
}

/* function(lower, inout, type): bytes as memoryviews, of which the second can be written. */
static void combine(const void *in, void *inout, uint64_t count, abc_type type, void *context)
{
    Py_ssize_t bytes = (Py_ssize_t)(count * abc_type_size(type));
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *function = Py_NewRef((PyObject *)context), *done = NULL;
    PyObject *lower = PyMemoryView_FromMemory((char *)(uintptr_t)in, bytes, PyBUF_READ);
    PyObject *both = lower ? PyMemoryView_FromMemory(inout, bytes, PyBUF_WRITE) : NULL;
    PyObject *number = both ? PyLong_FromLong(type) : NULL;
    if (number)
        done = PyObject_CallFunctionObjArgs(function, lower, both, number, NULL);
    if (!done)
        give_up(function);
    Py_XDECREF(done);
    Py_XDECREF(number);
    Py_XDECREF(both);
    Py_XDECREF(lower);
    Py_DECREF(function);
    PyGILState_Release(gil);
}

static PyObject *user_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"function", "commutes", NULL};
    PyObject *function;
    int commutes = 0;
    abc_op number;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|p:UserOperation", names, &function, &commutes))
        return NULL;
    if (!PyCallable_Check(function))
        return abcpy_raise_type("the function %R cannot be called", function);
    int status = abc_op_create(combine, commutes, function, &number);
    return status == ABC_OK ? op_make(type, number, function) : abcpy_raise_last(status);
}

static void op_dealloc(PyObject *self)
{
    struct op *o = (struct op *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (o->pid == (long)getpid())
        abc_op_free(o->number);
    Py_CLEAR(o->function);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self); /* subclasses have another one */
    Py_DECREF(type);
}

bool abcpy_op_number(PyObject *object, abc_op *number)
{
    if (Py_TYPE(object) != op_type && !PyType_IsSubtype(Py_TYPE(object), user_type))
        return false;
    *number = ((struct op *)object)->number;
    return true;
}

static PyTypeObject *add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(spec);
    if (type && PyModule_AddObjectRef(module, name, (PyObject *)type) != 0)
        Py_CLEAR(type);
    return type;
}

int abcpy_op_add(PyObject *module)
{
    static PyType_Slot scaled[] = {{Py_tp_new, op_new},
                                   {Py_tp_dealloc, op_dealloc},
                                   {Py_tp_doc,
                                    "ScaledSum(scalar)\n--\n\nA sum of inputs that are multiplied by this rank's scalar first: "
                                    "one element of the type of the arrays, e.g. numpy.float32(0.5)."},
                                   {0, NULL}};
    static PyType_Slot user[] = {
        {Py_tp_new, user_new},
        {Py_tp_dealloc, op_dealloc},
        {Py_tp_doc, "UserOperation(function, commutes=False)\n--\n\nfunction(lower, inout, type) on bytes."},
        {0, NULL}};
    static PyType_Spec scaled_spec = {"abcomm.ScaledSum", sizeof(struct op), 0, Py_TPFLAGS_DEFAULT, scaled};
    static PyType_Spec user_spec = {"abcomm._abcomm.UserOperation", sizeof(struct op), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                    user};
    op_type = add_type(module, "ScaledSum", &scaled_spec);
    user_type = op_type ? add_type(module, "UserOperation", &user_spec) : NULL;
    return user_type ? 0 : -1;
}
