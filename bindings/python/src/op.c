/*
 * op.c - abcomm.ScaledSum: a sum before which every rank's input is multiplied by a scalar of its own. Operations in progress keep
 * the object alive; with the last reference its number is free again.
 */
#include "ext.h"

#include <unistd.h>

struct op {
    PyObject_HEAD abc_op number;
    long pid; /* a forked child leaves it alone */
};
static PyTypeObject *op_type;

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
    if (status != ABC_OK)
        return abcpy_raise_last(status);
    struct op *o = (struct op *)PyType_GenericAlloc(type, 0);
    if (!o) {
        abc_op_free(number);
        return NULL;
    }
    o->number = number;
    o->pid = (long)getpid();
    return (PyObject *)o;
}

static void op_dealloc(PyObject *self)
{
    struct op *o = (struct op *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (o->pid == (long)getpid())
        abc_op_free(o->number);
    PyObject_Free(self);
    Py_DECREF(type);
}

bool abcpy_op_number(PyObject *object, abc_op *number)
{
    if (Py_TYPE(object) != op_type)
        return false;
    *number = ((struct op *)object)->number;
    return true;
}

int abcpy_op_add(PyObject *module)
{
    static PyType_Slot slots[] = {{Py_tp_new, op_new},
                                  {Py_tp_dealloc, op_dealloc},
                                  {Py_tp_doc,
                                   "ScaledSum(scalar)\n--\n\nA sum of inputs that are multiplied by this rank's scalar first: "
                                   "one element of the type of the arrays, e.g. numpy.float32(0.5)."},
                                  {0, NULL}};
    static PyType_Spec spec = {"abcomm.ScaledSum", sizeof(struct op), 0, Py_TPFLAGS_DEFAULT, slots};
    op_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return op_type ? PyModule_AddObjectRef(module, "ScaledSum", (PyObject *)op_type) : -1;
}
