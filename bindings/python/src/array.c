/*
 * array.c - from a Python object to contiguous elements, without a copy. Three ways in, the first that fits: a tuple
 * (address, count, dtype), the buffer protocol, DLPack on the CPU. NumPy exports no buffer for the types of ml_dtypes (bfloat16,
 * float8): those arrays are taken through a view of unsigned integers, and the type from the name of their dtype.
 *
 * What cannot be used as it is, is refused with the remedy in the text: strided, read-only, of foreign byte order, unknown type. A
 * silent copy would cost what the caller tries to save, and would not see later writes.
 *
 * Adding an element type is one row of `rows`; the number of the type is asked of the library by name when the module is loaded.
 */
#include "ext.h"

#include <string.h>

#include "dlpack.h"

struct row {
    const char *name;  /* the library's */
    const char *dtype; /* NumPy's or ml_dtypes' */
    char kind;         /* f float, c complex, i signed, u unsigned, b bool, 0 none: not told by a buffer's format */
    unsigned char size;
    unsigned char dlpack; /* type code */
    const char *pair;     /* format of a pair, without names and padding */
};
static const struct row rows[] = {
    {"f32", "float32", 'f', 4, DLPACK_FLOAT},
    {"f64", "float64", 'f', 8, DLPACK_FLOAT},
    {"f16", "float16", 'f', 2, DLPACK_FLOAT},
    {"bf16", "bfloat16", 0, 2, DLPACK_BFLOAT},
    {"fp8_e4m3", "float8_e4m3fn", 0, 1, DLPACK_FLOAT8_E4M3FN},
    {"fp8_e5m2", "float8_e5m2", 0, 1, DLPACK_FLOAT8_E5M2},
    {"i8", "int8", 'i', 1, DLPACK_INT},
    {"i16", "int16", 'i', 2, DLPACK_INT},
    {"i32", "int32", 'i', 4, DLPACK_INT},
    {"i64", "int64", 'i', 8, DLPACK_INT},
    {"u8", "uint8", 'u', 1, DLPACK_UINT},
    {"u16", "uint16", 'u', 2, DLPACK_UINT},
    {"u32", "uint32", 'u', 4, DLPACK_UINT},
    {"u64", "uint64", 'u', 8, DLPACK_UINT},
    {"bool", "bool", 'b', 1, DLPACK_BOOL},
    {"complex64", "complex64", 'c', 8, DLPACK_COMPLEX},
    {"complex128", "complex128", 'c', 16, DLPACK_COMPLEX},
    {"f32_i32", "f4,i4", 0, 8, DLPACK_NONE, "T{fi}"},
    {"i32_i32", "i4,i4", 0, 8, DLPACK_NONE, "T{ii}"},
    {"f64_i32", NULL, 0, 16, DLPACK_NONE, "T{di}"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };
static int codes[ROWS]; /* abc_type of each row, -1 if the library has none */
static PyObject *names; /* dict: every name of a type to its number */
static PyObject *str_name, *str_dunder_name, *str_dtype, *str_view, *str_dlpack, *str_dlpack_device;

static int intern(PyObject **where, const char *text)
{
    *where = PyUnicode_InternFromString(text);
    return *where ? 0 : -1;
}

/* types: {"f32": (number, bytes, "float32")}, of those that the loaded library knows. */
static int add_type(PyObject *types, const char *name, int number, const char *dtype)
{
    PyObject *value = Py_BuildValue("iiz", number, (int)abc_type_size((abc_type)number), dtype);
    PyObject *code = PyLong_FromLong(number);
    int failed = !value || !code || PyDict_SetItemString(types, name, value) || PyDict_SetItemString(names, name, code) ||
                 (dtype && PyDict_SetItemString(names, dtype, code));
    Py_XDECREF(value);
    Py_XDECREF(code);
    return failed ? -1 : 0;
}

int abcpy_types_add(PyObject *module)
{
    PyObject *types = PyDict_New();
    names = PyDict_New();
    int failed = !types || !names || intern(&str_name, "name") || intern(&str_dunder_name, "__name__") ||
                 intern(&str_dtype, "dtype") || intern(&str_view, "view") || intern(&str_dlpack, "__dlpack__") ||
                 intern(&str_dlpack_device, "__dlpack_device__");
    for (int i = 0; i < ROWS; i++)
        codes[i] = -1;
    for (int number = 0; !failed && abc_type_size((abc_type)number) > 0; number++) {
        const char *name = abc_type_name((abc_type)number), *dtype = NULL;
        for (int i = 0; i < ROWS; i++)
            if (strcmp(rows[i].name, name) == 0) {
                codes[i] = number;
                dtype = rows[i].dtype;
            }
        failed = add_type(types, name, number, dtype);
    }
    if (!failed)
        failed = PyModule_AddObjectRef(module, "types", types);
    Py_XDECREF(types);
    return failed ? -1 : 0;
}

static int unknown_type(const char *what, const char *type)
{
    abcpy_raise_type("%s has elements of type %s, which this version does not know; abcomm.types lists what it knows", what, type);
    return -1;
}

/* The row of a struct's format: "T{f:value:i:index:}" without the names of its fields and without padding; -1. */
static int row_of_struct(const char *format, Py_ssize_t size)
{
    char bare[16];
    size_t n = 0;
    bool in_name = false;
    for (const char *f = format; *f && n + 1 < sizeof bare; f++) {
        if (*f == ':')
            in_name = !in_name;
        else if (!in_name && !strchr("@=<^x", *f))
            bare[n++] = *f;
    }
    bare[n] = 0;
    for (int i = 0; i < ROWS; i++)
        if (rows[i].pair && rows[i].size == size && strcmp(rows[i].pair, bare) == 0)
            return i;
    return -1;
}

/* The row of a buffer's format ("f", "<i", "Zd"), -1 if there is none, -2 if its bytes are in foreign order. */
static int row_of_format(const char *format, Py_ssize_t size)
{
    static const char signed_letters[] = "bhilqn", unsigned_letters[] = "cBHILQN", float_letters[] = "efd";
    const char *f = format ? format : "B";
    if ((*f == '>' || *f == '!') && size > 1)
        return -2;
    if (*f == 'T')
        return row_of_struct(f, size);
    if (strchr("@=<>!|", *f) && *f)
        f++;
    char kind = 0;
    if (*f == 'Z' && f[1] && strchr(float_letters, f[1]) && !f[2])
        kind = 'c';
    else if (*f && !f[1])
        kind = *f == '?'                      ? 'b'
               : strchr(float_letters, *f)    ? 'f'
               : strchr(signed_letters, *f)   ? 'i'
               : strchr(unsigned_letters, *f) ? 'u'
                                              : 0;
    for (int i = 0; kind && i < ROWS; i++)
        if (rows[i].kind == kind && rows[i].size == size)
            return i;
    return -1;
}

/* The row whose NumPy name is `dtype`, among those that no format tells; -1. */
static int row_of_dtype(const char *dtype)
{
    for (int i = 0; i < ROWS; i++)
        if (rows[i].kind == 0 && !rows[i].pair && strcmp(rows[i].dtype, dtype) == 0)
            return i;
    return -1;
}

static int set_type(struct abcpy_array *a, const char *what, int row, const char *told)
{
    if (row == -2) {
        abcpy_raise_type(
            "%s has elements of foreign byte order (format %s); convert it first, e.g. x.astype(x.dtype.newbyteorder('='))", what,
            told);
        return -1;
    }
    if (row < 0 || codes[row] < 0)
        return unknown_type(what, told);
    a->type = (abc_type)codes[row];
    return 0;
}

static int refuse_strided(const char *what)
{
    abcpy_raise(ABC_ERR_ARGUMENT, "%s is not contiguous in C order; pass a contiguous array, e.g. numpy.ascontiguousarray(x)",
                what);
    return -1;
}

static int refuse_read_only(const char *what)
{
    abcpy_raise(ABC_ERR_ARGUMENT, "%s is read-only; pass an array that can be written", what);
    return -1;
}

/* ---- the buffer protocol ---- */

static int use_view(struct abcpy_array *a, const char *what, bool writable)
{
    a->has_view = true;
    if (writable && a->view.readonly)
        return refuse_read_only(what);
    if (a->view.suboffsets || !PyBuffer_IsContiguous(&a->view, 'C'))
        return refuse_strided(what);
    a->data = a->view.buf;
    a->count = a->view.itemsize > 0 ? (uint64_t)(a->view.len / a->view.itemsize) : 0;
    return 0;
}

/* The name of object.dtype as a new reference, NULL without an exception if there is none. */
static PyObject *dtype_name(PyObject *object)
{
    PyObject *dtype = PyObject_GetAttr(object, str_dtype);
    PyObject *name = dtype ? PyObject_GetAttr(dtype, str_name) : NULL;
    Py_XDECREF(dtype);
    if (name && PyUnicode_Check(name))
        return name;
    Py_XDECREF(name);
    PyErr_Clear();
    return NULL;
}

/* An array whose dtype the buffer protocol cannot tell: look at it as unsigned integers. */
static int take_opaque(PyObject *object, const char *what, bool writable, struct abcpy_array *a)
{
    PyObject *name = dtype_name(object);
    const char *text = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    int row = text ? row_of_dtype(text) : -1;
    int failed;
    if (!text) {
        PyErr_Clear();
        abcpy_raise_type("%s exports no buffer", what);
        failed = -1;
    } else if (row < 0) {
        failed = unknown_type(what, text);
    } else {
        failed = set_type(a, what, row, text);
        a->owner = failed ? NULL : PyObject_CallMethod(object, "view", "s", rows[row].size == 1 ? "uint8" : "uint16");
        if (!failed && !a->owner && PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Clear();
            failed = refuse_strided(what);
        }
        if (!failed)
            failed = !a->owner || PyObject_GetBuffer(a->owner, &a->view, PyBUF_RECORDS_RO) || use_view(a, what, writable);
    }
    Py_XDECREF(name);
    return failed ? -1 : 0;
}

static int take_buffer(PyObject *object, const char *what, bool writable, struct abcpy_array *a)
{
    if (PyObject_GetBuffer(object, &a->view, PyBUF_RECORDS_RO) == 0)
        return use_view(a, what, writable) ||
               set_type(a, what, row_of_format(a->view.format, a->view.itemsize), a->view.format ? a->view.format : "B");
    if (!PyErr_ExceptionMatches(PyExc_ValueError) && !PyErr_ExceptionMatches(PyExc_BufferError) &&
        !PyErr_ExceptionMatches(PyExc_NotImplementedError))
        return -1;
    PyErr_Clear();
    return take_opaque(object, what, writable, a);
}

/* ---- DLPack ---- */

static int row_of_dlpack(struct dlpack_type type)
{
    for (int i = 0; i < ROWS; i++)
        if (rows[i].dlpack == type.code && rows[i].size * 8 == type.bits && type.lanes == 1)
            return i;
    return -1;
}

static bool dense(const struct dlpack_tensor *t)
{
    int64_t step = 1;
    for (int d = t->ndim; t->strides && d-- > 0; step *= t->shape[d])
        if (t->shape[d] != 1 && t->strides[d] != step)
            return false;
    return true;
}

static int use_tensor(const struct dlpack_tensor *t, bool read_only, const char *what, bool writable, struct abcpy_array *a)
{
    char told[48];
    uint64_t count = 1;
    if (t->device.type != DLPACK_CPU) {
        abcpy_raise(ABC_ERR_UNSUPPORTED,
                    "%s is on a device (DLPack type %d), only memory of the CPU can be used; copy it there first", what,
                    (int)t->device.type);
        return -1;
    }
    for (int d = 0; d < t->ndim; d++)
        count *= (uint64_t)t->shape[d];
    if (writable && read_only)
        return refuse_read_only(what);
    if (count > 0 && !dense(t))
        return refuse_strided(what);
    a->data = (char *)t->data + t->byte_offset;
    a->count = count;
    PyOS_snprintf(told, sizeof told, "(DLPack code %d, %d bits, %d lanes)", t->type.code, t->type.bits, t->type.lanes);
    return set_type(a, what, row_of_dlpack(t->type), told);
}

/* object.__dlpack__(), of version 1 where the object knows that: older capsules cannot say "read-only". */
static PyObject *capsule_of(PyObject *object)
{
    PyObject *method = PyObject_GetAttr(object, str_dlpack);
    PyObject *empty = method ? PyTuple_New(0) : NULL, *versions = empty ? Py_BuildValue("{s:(ii)}", "max_version", 1, 0) : NULL;
    PyObject *capsule = versions ? PyObject_Call(method, empty, versions) : NULL;
    if (!capsule && versions && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_CallNoArgs(method);
    }
    Py_XDECREF(versions);
    Py_XDECREF(empty);
    Py_XDECREF(method);
    return capsule;
}

/* The capsule is kept, not consumed: its own destructor gives the tensor back. */
static int take_dlpack(PyObject *object, const char *what, bool writable, struct abcpy_array *a)
{
    a->owner = capsule_of(object);
    if (!a->owner)
        return -1;
    if (PyCapsule_IsValid(a->owner, "dltensor_versioned")) {
        const struct dlpack_versioned *v = PyCapsule_GetPointer(a->owner, "dltensor_versioned");
        if (v->major != DLPACK_MAJOR) {
            abcpy_raise(ABC_ERR_UNSUPPORTED, "%s comes by DLPack version %u.%u, this version knows 0 and 1", what, v->major,
                        v->minor);
            return -1;
        }
        return use_tensor(&v->tensor, v->flags & DLPACK_READ_ONLY, what, writable, a);
    }
    const struct dlpack_managed *m = PyCapsule_GetPointer(a->owner, "dltensor");
    return m ? use_tensor(&m->tensor, false, what, writable, a) : -1;
}

/* ---- (address, count, dtype) ---- */

static int take_address(PyObject *tuple, const char *what, struct abcpy_array *a)
{
    Py_ssize_t size = PyTuple_Size(tuple);
    if (size != 3 && size != 4) {
        abcpy_raise_type("%s is a tuple of %zd; it must be an array or (address, count, dtype), maybe with an owner", what, size);
        return -1;
    }
    a->data = PyLong_AsVoidPtr(PyTuple_GetItem(tuple, 0));
    if (!a->data && PyErr_Occurred())
        return -1;
    a->count = PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple, 1));
    if (a->count == UINT64_MAX && PyErr_Occurred())
        return -1;
    if (size == 4)
        a->owner = Py_NewRef(PyTuple_GetItem(tuple, 3));
    return abcpy_type_from(PyTuple_GetItem(tuple, 2), &a->type);
}

int abcpy_array_take(PyObject *object, const char *what, bool writable, struct abcpy_array *a)
{
    int failed;
    a->has_view = false;
    a->owner = NULL;
    if (PyObject_CheckBuffer(object)) {
        failed = take_buffer(object, what, writable, a);
    } else if (PyTuple_CheckExact(object)) {
        failed = take_address(object, what, a);
    } else if (PyObject_HasAttrString(object, "__dlpack__")) {
        failed = take_dlpack(object, what, writable, a);
    } else {
        PyObject *kind = PyType_GetName(Py_TYPE(object));
        if (kind)
            abcpy_raise_type(
                "%s is of type %U, which is not an array; pass what has the buffer protocol (NumPy, array, memoryview) "
                "or DLPack, or (address, count, dtype)",
                what, kind);
        Py_XDECREF(kind);
        failed = -1;
    }
    if (failed)
        abcpy_array_release(a);
    return failed ? -1 : 0;
}

void abcpy_array_release(struct abcpy_array *a)
{
    if (a->has_view)
        PyBuffer_Release(&a->view);
    a->has_view = false;
    Py_CLEAR(a->owner);
}

int abcpy_type_from(PyObject *object, abc_type *type)
{
    PyObject *name = NULL, *code = NULL;
    if (PyLong_Check(object)) {
        long number = PyLong_AsLong(object);
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (number < 0 || number > INT32_MAX || abc_type_size((abc_type)number) == 0)
            return abcpy_raise(ABC_ERR_ARGUMENT, "dtype %ld is unknown; abcomm.types lists them", number), -1;
        *type = (abc_type)number;
        return 0;
    }
    if (PyUnicode_Check(object))
        name = Py_NewRef(object);
    else if (!(name = PyObject_GetAttr(object, PyType_Check(object) ? str_dunder_name : str_name)))
        PyErr_Clear();
    if (name && PyUnicode_Check(name))
        code = PyDict_GetItemWithError(names, name);
    if (code)
        *type = (abc_type)PyLong_AsLong(code);
    else if (!PyErr_Occurred())
        abcpy_raise_type("dtype %R is unknown; abcomm.types lists them", object);
    Py_XDECREF(name);
    return code ? 0 : -1;
}
