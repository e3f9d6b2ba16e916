/*
 * ext.h - what the files of the extension abcomm._abcomm share. It is written against Python's stable ABI of 3.11, so that one
 * build serves every later CPython, and knows neither NumPy nor any framework: arrays come by the buffer protocol, by DLPack or as
 * (address, count, dtype).
 *
 * Rule of the whole extension: state of Python objects is touched with the GIL held; every call into the library that may take time
 * or drive operations is made without it. Operations may complete, and their callbacks run, on any thread.
 */
#ifndef ABCPY_EXT_H
#define ABCPY_EXT_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdbool.h>

#include <abcomm/abcomm.h>

/* ---- errors.c ---- */
int abcpy_errors_add(PyObject *module);
/* The exception class of a status. */
PyObject *abcpy_error_class(int status);
/* Raise the class of `status` with a text of the extension's own. Returns NULL. */
PyObject *abcpy_raise(int status, const char *format, ...);
/* The same as a TypeError as well: the argument is of a kind that cannot be used. */
PyObject *abcpy_raise_type(const char *format, ...);
/* Raise the calling thread's last error of the library. Returns NULL. */
PyObject *abcpy_raise_last(int status);

/* ---- array.c ---- */
/* Contiguous elements that belong to a Python object, kept alive until the release. */
struct abcpy_array {
    void *data;
    uint64_t count;
    abc_type type;
    bool has_view;
    Py_buffer view;
    PyObject *owner; /* what else is kept: a DLPack capsule, what has the view instead of the object itself, a tuple's owner */
};
int abcpy_types_add(PyObject *module);
/* Take the elements of an object, which `what` names in texts ("the input"); writable: refuse what is read-only. 0, or -1 with an
 * exception. */
int abcpy_array_take(PyObject *object, const char *what, bool writable, struct abcpy_array *array);
void abcpy_array_release(struct abcpy_array *array);
/* A type from its name, its number or an object with a name (a NumPy dtype or scalar type). -1 with an exception. */
int abcpy_type_from(PyObject *object, abc_type *type);
/* ---- memory.c ---- */
extern PyTypeObject *abcpy_memory_type;
int abcpy_memory_add(PyObject *module);

/* ---- op.c ---- */
int abcpy_op_add(PyObject *module);
/* True if the object is an operation; its number. */
bool abcpy_op_number(PyObject *object, abc_op *number);

/* ---- exchange.c ---- */
/* An abc_exchange over a Python object with put, get and wait. */
struct abcpy_exchange {
    abc_exchange table;
    PyObject *object;
    PyObject *failure; /* the first exception that a method raised */
};
void abcpy_exchange_open(struct abcpy_exchange *exchange, PyObject *object);
/* Let the library's exception that is set now name the exchange's own as its cause, if there was one. */
void abcpy_exchange_close(struct abcpy_exchange *exchange);

/* ---- call.c ---- */
/* One operation with the arrays that it uses. */
struct abcpy_call {
    abc_call call;
    struct abcpy_array in, out;
    PyObject *result;    /* the output as it was passed, or None */
    PyObject *algorithm; /* keeps call.algorithm alive */
    PyObject *op;        /* keeps call.op, if it is an object */
    abc_received received;
    uint64_t *lists; /* memory of the call's counts and offsets, or NULL */
};
/* The arguments of run, start and prepare, in the order of their positions. */
enum {
    ABCPY_COLLECTIVE,
    ABCPY_IN,
    ABCPY_OUT,
    ABCPY_OP,
    ABCPY_ROOT,
    ABCPY_TIMEOUT,
    ABCPY_ALGORITHM,
    ABCPY_TAG,
    ABCPY_PRESERVE,
    ABCPY_CALLBACK,
    ABCPY_IN_COUNTS, /* four lists, in the order of counts.c */
    ABCPY_IN_OFFSETS,
    ABCPY_OUT_COUNTS,
    ABCPY_OUT_OFFSETS,
    ABCPY_ARGUMENTS,
    ABCPY_LISTS = ABCPY_ARGUMENTS - ABCPY_IN_COUNTS
};
struct abcpy_arguments {
    PyObject *at[ABCPY_ARGUMENTS]; /* borrowed; NULL where none, or None, was given */
};
int abcpy_calls_add(PyObject *module);
/* Sort what a vector call was given; keywords may be NULL. 0, or -1 with an exception. */
int abcpy_arguments_take(PyObject *const *args, Py_ssize_t nargs, PyObject *keywords, struct abcpy_arguments *arguments);
/* 0, or -1 with an exception and nothing to release. */
int abcpy_call_take(int rank, int size, const struct abcpy_arguments *arguments, struct abcpy_call *call);
/* What a completed operation returns: the output as it was passed, None, or for a receive a Received. NULL with an exception. */
PyObject *abcpy_call_result(const struct abcpy_call *call);
void abcpy_call_release(struct abcpy_call *call);

/* ---- counts.c ---- */
/* Fill the call's lists from the arguments: those whose bit is set in `lists`. 0, or -1 with an exception; in both cases
 * abcpy_call_release frees them. */
int abcpy_counts_take(const char *collective, unsigned lists, int size, const struct abcpy_arguments *arguments,
                      struct abcpy_call *call);
/* Do the blocks of the input (else of the output) lie inside its array? 0, or -1 with an exception. */
int abcpy_counts_fit(const char *collective, bool input, int size, const struct abcpy_call *call);
/* -1 with an exception if a list was given; for collectives that have none. */
int abcpy_counts_refuse(const char *collective, const struct abcpy_arguments *arguments);

/* ---- comm.c ---- */
struct abcpy_flight;
struct abcpy_comm {
    PyObject_HEAD abc_comm *comm; /* NULL before creation and after close */
    int rank, size;
    long pid;                      /* who created it; a forked child leaves it alone */
    unsigned users;                /* calls of other threads that are inside the library with `comm` */
    bool closing;                  /* no further calls */
    bool told;                     /* the failure that ended the communicator has been raised */
    struct abcpy_flight *flights;  /* all requests that exist */
    struct abcpy_comm *next, **at; /* all open communicators of the process */
};
extern PyTypeObject *abcpy_comm_type;
int abcpy_comm_add(PyObject *module);
/* True when calls may be made: not closed, not inside a callback if the call `waits`. Counts a user; abcpy_comm_leave uncounts. */
bool abcpy_comm_enter(struct abcpy_comm *comm, bool waits);
void abcpy_comm_leave(struct abcpy_comm *comm);
/* Raise the library's last error after a call on `comm` returned `status`. Returns NULL. */
PyObject *abcpy_comm_raise(struct abcpy_comm *comm, int status);

/* ---- group.c ---- */
int abcpy_group_add(PyObject *module);
/* True while the calling thread has a group open. */
bool abcpy_in_group(void);
/* Make a blocking call that only starts when the group ends; its arrays are kept until then. NULL with an exception, or what the
 * call will return, where that is known before: the output. */
PyObject *abcpy_group_run(struct abcpy_comm *comm, const struct abcpy_arguments *arguments);

/* ---- request.c ---- */
/* One request of the library. It outlives its Python object while it is in progress: peers depend on it. */
struct abcpy_flight {
    struct abcpy_call call;
    abc_request *request;
    abc_comm *handle;        /* stays valid as long as the request does, which may be longer than the Python object */
    PyObject *callback;      /* or NULL */
    PyObject *owner;         /* the Request, not counted; NULL when that is gone */
    bool active;             /* started and not known to be complete */
    _Atomic int status;      /* what the operation has ended with; ABC_PENDING before */
    bool over;               /* by completions.c: the operation has ended, or none was started */
    struct abcpy_node *node; /* what completions get when it is over, or NULL */
    unsigned users;          /* threads inside the library with `request` */
    struct abcpy_flight *next, **at;
};
int abcpy_request_add(PyObject *module);
/* The flight of a Request; NULL with an exception if the object is none, or its communicator is closed. */
struct abcpy_flight *abcpy_flight_of(PyObject *request);
/* True while the calling thread runs a callback. */
bool abcpy_in_callback(void);
/* A Request, started or not. */
PyObject *abcpy_request_make(struct abcpy_comm *comm, const struct abcpy_arguments *arguments, bool start);
/* Free the flights whose Python object is gone and that are over. */
void abcpy_flights_reap(struct abcpy_comm *comm);
/* Complete all flights, within `seconds` if that is not negative. False if some are still in progress. */
bool abcpy_flights_finish(struct abcpy_comm *comm, double seconds);
/* Free all flights; false if one is in use still. */
bool abcpy_flights_free(struct abcpy_comm *comm);

/* ---- completions.c ---- */
int abcpy_completions_add(PyObject *module);
/* The operation begins (returns whether none was in progress) or has ended; neither needs the GIL. */
bool abcpy_flight_begins(struct abcpy_flight *flight);
void abcpy_flight_is_over(struct abcpy_flight *flight);
/* Nobody is told of its end. */
void abcpy_flight_unlink(struct abcpy_flight *flight);

#endif
