/*
 * memory.c - abcomm.Memory: bytes of the arena, which peers of this machine read without a copy, as a buffer. Arrays made over it
 * keep it alive; with the last of them it is given back.
 */
#include "ext.h"

#include <unistd.h>

struct memory {
    PyObject_HEAD void *data;
    Py_ssize_t bytes;
    long pid; /* a forked child shares the memory and must not free it */
};
PyTypeObject *abcpy_memory_type;

static PyObject *memory_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"nbytes", NULL};
    Py_ssize_t bytes;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "n:Memory", names, &bytes))
        return NULL;
    if (bytes < 0)
        return abcpy_raise(ABC_ERR_ARGUMENT, "Memory: %zd bytes are less than none", bytes);
    void *data;
    int status = abc_mem_alloc((size_t)bytes, &data);
    if (status != ABC_OK)
        return abcpy_raise_last(status);
    struct memory *m = (struct memory *)PyType_GenericAlloc(type, 0);
    if (!m) {
        abc_mem_free(data);
        return NULL;
    }
    m->data = data;
    m->bytes = bytes;
    m->pid = (long)getpid();
    return (PyObject *)m;
}

static void memory_dealloc(PyObject *self)
{
    struct memory *m = (struct memory *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (m->pid == (long)getpid())
        abc_mem_free(m->data);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int memory_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    struct memory *m = (struct memory *)self;
    return PyBuffer_FillInfo(view, self, m->data, m->bytes, 0, flags);
}

static Py_ssize_t memory_length(PyObject *self)
{
    return ((struct memory *)self)->bytes;
}

static PyObject *memory_address(PyObject *self, void *closure)
{
    return PyLong_FromVoidPtr(((struct memory *)self)->data);
}

static PyObject *memory_nbytes(PyObject *self, void *closure)
{
    return PyLong_FromSsize_t(((struct memory *)self)->bytes);
}

int abcpy_memory_add(PyObject *module)
{
    static PyGetSetDef members[] = {{"address", memory_address, NULL, "Address of the first byte.", NULL},
                                    {"nbytes", memory_nbytes, NULL, "Number of bytes.", NULL},
                                    {NULL}};
    static PyType_Slot slots[] = {{Py_tp_new, memory_new},
                                  {Py_tp_dealloc, memory_dealloc},
                                  {Py_tp_doc, "Memory(nbytes)\n--\n\nBytes that peers of this machine read without a copy, as a "
                                              "writable buffer with undefined contents."},
                                  {Py_tp_getset, members},
                                  {Py_sq_length, memory_length},
                                  {Py_bf_getbuffer, memory_get_buffer},
                                  {0, NULL}};
    static PyType_Spec spec = {"abcomm.Memory", sizeof(struct memory), 0, Py_TPFLAGS_DEFAULT, slots};
    abcpy_memory_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return abcpy_memory_type ? PyModule_AddObjectRef(module, "Memory", (PyObject *)abcpy_memory_type) : -1;
}
