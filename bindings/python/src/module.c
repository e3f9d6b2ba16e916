/*
 * module.c - the extension abcomm._abcomm: makes the types and tables. Initialised once in a process, because the library's state
 * is the process's: Python refuses it in isolated subinterpreters. The package abcomm/ around it has names, defaults and
 * documentation.
 */
#include "ext.h"

#include <string.h>

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

/* The structs of abcomm.h belong to one version; while that begins with 0 each minor version may change them. */
static int check_version(void)
{
    static const char built[] = VERSION(ABC_VERSION_MAJOR, ABC_VERSION_MINOR, ABC_VERSION_PATCH);
    const char *loaded = abc_version(), *dot = strrchr(loaded, '.');
    if (dot && strncmp(built, loaded, (size_t)(dot - loaded) + 1) == 0)
        return 0;
    PyErr_Format(PyExc_ImportError,
                 "abcomm was built for libabcomm %s, but %s is loaded in this process; install the package again, "
                 "or see that nothing else loads another libabcomm.so.0",
                 built, loaded);
    return -1;
}

PyMODINIT_FUNC PyInit__abcomm(void)
{
    static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "abcomm._abcomm", .m_size = -1,
                                            .m_doc = "The extension behind the package abcomm."};
    if (check_version() != 0)
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    if (abcpy_errors_add(module) || abcpy_types_add(module) || abcpy_calls_add(module) || abcpy_memory_add(module) ||
        abcpy_op_add(module) || abcpy_group_add(module) || abcpy_request_add(module) || abcpy_completions_add(module) ||
        abcpy_comm_add(module) || PyModule_AddStringConstant(module, "version", abc_version()))
        Py_CLEAR(module);
    return module;
}
