/*
 * request.c - abcomm.Request, and the flights behind it. Every request is a persistent one of the library: it can be waited for by
 * several threads and started again, and is freed when nobody needs it. A flight owns the arrays and the callback, because peers
 * need the operation to end even when the program has dropped the Request.
 *
 * The callback runs with the GIL, on whichever thread drove the operation to its end; so no thread may enter the library with the
 * GIL held.
 */
#include "ext.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct request {
    PyObject_HEAD struct abcpy_comm *comm; /* counted */
    struct abcpy_flight *flight;           /* NULL once the communicator is closed */
    PyObject *kept;                        /* what wait returns then, if the operation has succeeded before */
};
static PyTypeObject *request_type;
static __thread int callback_depth;

bool abcpy_in_callback(void)
{
    return callback_depth > 0;
}

/* ---- flights ---- */

/* The communicator is closed, which has completed the operation; who waits later is told of that end. */
static void outlive(struct request *r, const struct abcpy_flight *f)
{
    r->flight = NULL;
    if (f->status == ABC_OK && !(r->kept = abcpy_call_result(&f->call)))
        PyErr_Clear();
}

static void flight_free(struct abcpy_flight *f)
{
    *f->at = f->next;
    if (f->next)
        f->next->at = f->at;
    if (f->owner)
        outlive((struct request *)f->owner, f);
    abcpy_call_release(&f->call);
    abcpy_flight_unlink(f);
    Py_CLEAR(f->callback);
    PyMem_Free(f);
}

/* Free it if it is over and nobody is inside the library with it. */
static bool flight_try_free(struct abcpy_flight *f)
{
    if (f->users > 0 || abc_request_free(f->request) != ABC_OK)
        return false;
    flight_free(f);
    return true;
}

void abcpy_flights_reap(struct abcpy_comm *c)
{
    for (struct abcpy_flight *f = c->flights, *next; f; f = next) {
        next = f->next;
        if (!f->owner)
            flight_try_free(f);
    }
}

static struct abcpy_flight *first_active(struct abcpy_comm *c)
{
    struct abcpy_flight *f = c->flights;
    while (f && !f->active)
        f = f->next;
    return f;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ABC_PENDING, or the status of the flight's operation. Without limit it waits; else it looks, and sleeps a little if in vain. */
static int flight_advance(struct abcpy_flight *f, bool limited)
{
    int status;
    f->users++;
    Py_BEGIN_ALLOW_THREADS;
    if (limited) {
        struct timespec pause = {0, 500000};
        status = abc_test(f->request);
        if (status == ABC_PENDING)
            nanosleep(&pause, NULL);
    } else {
        abc_request *request = f->request;
        status = abc_wait(&request);
    }
    Py_END_ALLOW_THREADS;
    f->users--;
    if (status != ABC_PENDING)
        f->active = false;
    return status;
}

bool abcpy_flights_finish(struct abcpy_comm *c, double seconds)
{
    double end = now() + seconds;
    struct abcpy_flight *f;
    while ((f = first_active(c))) {
        if (seconds >= 0 && now() > end)
            return false;
        flight_advance(f, seconds >= 0);
    }
    return true;
}

bool abcpy_flights_free(struct abcpy_comm *c)
{
    while (c->flights)
        if (!flight_try_free(c->flights))
            return false;
    return true;
}

/* ---- the callback ---- */

/* What the callback is told: None, or the exception that a wait would raise. */
static PyObject *outcome(struct abcpy_flight *f, int status)
{
    char text[1024] = "";
    if (status == ABC_OK)
        return Py_NewRef(Py_None);
    abc_comm_error(f->handle, text, sizeof text);
    return PyObject_CallFunction(abcpy_error_class(status), "s", *text ? text : abc_status_text(status));
}

static void call_back(struct abcpy_flight *f, int status)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *callback = Py_NewRef(f->callback), *told = outcome(f, status);
    callback_depth++;
    PyObject *done = told ? PyObject_CallFunctionObjArgs(callback, told, NULL) : NULL;
    callback_depth--;
    f->active = false;
    if (!done)
        PyErr_WriteUnraisable(callback);
    Py_XDECREF(done);
    Py_XDECREF(told);
    Py_DECREF(callback);
    PyGILState_Release(gil);
}

static void on_complete(abc_request *request, int status, void *context)
{
    struct abcpy_flight *f = context;
    f->status = status;
    if (f->callback)
        call_back(f, status);
    abcpy_flight_is_over(f);
}

/* ---- making one ---- */

static int launch(struct abcpy_flight *f)
{
    int status;
    f->active = true;
    f->status = ABC_PENDING;
    f->users++;
    bool was_over = abcpy_flight_begins(f);
    Py_BEGIN_ALLOW_THREADS;
    status = abc_restart(f->request);
    Py_END_ALLOW_THREADS;
    f->users--;
    if (status != ABC_OK && was_over)
        abcpy_flight_is_over(f);
    return status;
}

static struct abcpy_flight *flight_make(struct abcpy_comm *c, const struct abcpy_arguments *arguments)
{
    struct abcpy_flight *f = PyMem_Calloc(1, sizeof *f);
    PyObject *callback = arguments->at[ABCPY_CALLBACK];
    int status;
    if (!f)
        return (struct abcpy_flight *)PyErr_NoMemory();
    if (callback && !PyCallable_Check(callback)) {
        abcpy_raise_type("the callback %R cannot be called", callback);
        PyMem_Free(f);
        return NULL;
    }
    if (abcpy_call_take(c->rank, c->size, arguments, &f->call) != 0) {
        PyMem_Free(f);
        return NULL;
    }
    f->callback = callback ? Py_NewRef(callback) : NULL;
    f->call.call.callback = on_complete;
    f->call.call.callback_context = f;
    f->over = true;
    f->status = ABC_PENDING;
    Py_BEGIN_ALLOW_THREADS;
    status = abc_request_create(c->comm, &f->call.call, &f->request);
    Py_END_ALLOW_THREADS;
    if (status != ABC_OK) {
        abcpy_comm_raise(c, status);
        abcpy_call_release(&f->call);
        Py_CLEAR(f->callback);
        PyMem_Free(f);
        return NULL;
    }
    f->handle = c->comm;
    f->next = c->flights;
    f->at = &c->flights;
    if (c->flights)
        c->flights->at = &f->next;
    c->flights = f;
    return f;
}

static PyObject *wrap(struct abcpy_comm *c, struct abcpy_flight *f)
{
    struct request *r = (struct request *)PyType_GenericAlloc(request_type, 0);
    if (!r) {
        flight_try_free(f);
        return NULL;
    }
    r->comm = (struct abcpy_comm *)Py_NewRef((PyObject *)c);
    r->flight = f;
    f->owner = (PyObject *)r;
    return (PyObject *)r;
}

PyObject *abcpy_request_make(struct abcpy_comm *c, const struct abcpy_arguments *arguments, bool start)
{
    PyObject *made = NULL;
    if (!abcpy_comm_enter(c, false))
        return NULL;
    abcpy_flights_reap(c);
    struct abcpy_flight *f = flight_make(c, arguments);
    if (f)
        made = wrap(c, f);
    if (made && start) {
        int status = launch(f);
        if (status != ABC_OK) {
            f->active = false;
            abcpy_comm_raise(c, status);
            Py_CLEAR(made);
        }
    }
    abcpy_comm_leave(c);
    return made;
}

/* ---- the Python object ---- */

static struct abcpy_flight *flight_of(struct request *r, bool waits)
{
    if (!r->flight) {
        abcpy_raise(ABC_ERR_HANDLE, "the request's communicator is closed");
        return NULL;
    }
    return abcpy_comm_enter(r->comm, waits) ? r->flight : NULL;
}

struct abcpy_flight *abcpy_flight_of(PyObject *object)
{
    if (Py_TYPE(object) != request_type)
        return (struct abcpy_flight *)abcpy_raise_type("%R is not a request", object);
    struct abcpy_flight *f = ((struct request *)object)->flight;
    return f ? f : (struct abcpy_flight *)abcpy_raise(ABC_ERR_HANDLE, "the request's communicator is closed");
}

static PyObject *request_start(PyObject *self, PyObject *unused)
{
    struct request *r = (struct request *)self;
    struct abcpy_flight *f = flight_of(r, false);
    if (!f)
        return NULL;
    bool was_active = f->active;
    int status = launch(f);
    if (status != ABC_OK)
        f->active = was_active;
    abcpy_comm_leave(r->comm);
    return status == ABC_OK ? Py_NewRef(self) : abcpy_comm_raise(r->comm, status);
}

/* Another thread closes the communicator, and completes the operation. */
static bool being_closed(const struct request *r)
{
    return r->flight && r->comm->closing && r->comm->pid == (long)getpid();
}

/* What an operation has ended with that a close has completed, or NULL, without an exception: then the library is to be asked. */
static PyObject *result_of_close(const struct request *r)
{
    if (r->kept)
        return Py_NewRef(r->kept);
    return being_closed(r) && r->flight->status == ABC_OK ? abcpy_call_result(&r->flight->call) : NULL;
}

/* -1 with an exception, 0 while in progress, 1 when complete. */
static int test(struct request *r)
{
    if (r->kept || (being_closed(r) && r->flight->status == ABC_OK))
        return 1;
    if (being_closed(r) && r->flight->active && r->flight->status == ABC_PENDING)
        return 0;
    struct abcpy_flight *f = flight_of(r, false);
    int status;
    if (!f)
        return -1;
    f->users++;
    Py_BEGIN_ALLOW_THREADS;
    status = abc_test(f->request);
    Py_END_ALLOW_THREADS;
    f->users--;
    if (status != ABC_PENDING)
        f->active = false;
    abcpy_comm_leave(r->comm);
    if (status < 0)
        abcpy_comm_raise(r->comm, status);
    return status < 0 ? -1 : status == ABC_OK;
}

static PyObject *request_test(PyObject *self, PyObject *unused)
{
    int done = test((struct request *)self);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *request_wait(PyObject *self, PyObject *unused)
{
    struct request *r = (struct request *)self;
    while (being_closed(r) && r->flight->active && r->flight->status == ABC_PENDING) {
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&(struct timespec){0, 100000}, NULL);
        Py_END_ALLOW_THREADS;
    }
    PyObject *result = result_of_close(r);
    struct abcpy_flight *f = result ? NULL : flight_of(r, true);
    if (!f)
        return result;
    int status = flight_advance(f, false);
    result = status == ABC_OK ? abcpy_call_result(&f->call) : abcpy_comm_raise(r->comm, status);
    abcpy_comm_leave(r->comm);
    return result;
}

/* `await request`: give the event loop its turn until the operation is over. */
static PyObject *request_next(PyObject *self)
{
    int done = test((struct request *)self);
    if (done < 0)
        return NULL;
    if (!done)
        Py_RETURN_NONE;
    PyObject *result = request_wait(self, NULL);
    PyObject *stop = result ? PyObject_CallFunctionObjArgs(PyExc_StopIteration, result, NULL) : NULL;
    if (stop)
        PyErr_SetObject(PyExc_StopIteration, stop);
    Py_XDECREF(stop);
    Py_XDECREF(result);
    return NULL;
}

static PyObject *request_await(PyObject *self)
{
    return Py_NewRef(self);
}

static PyObject *request_active(PyObject *self, void *closure)
{
    struct request *r = (struct request *)self;
    return PyBool_FromLong(r->flight && r->flight->active);
}

static PyObject *request_comm(PyObject *self, void *closure)
{
    return Py_NewRef((PyObject *)((struct request *)self)->comm);
}

/* What a flight in progress holds is held for its peers' sake: the collector may not see it as part of a cycle. */
static int request_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct request *r = (struct request *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)r->comm);
    Py_VISIT(r->kept);
    if (r->flight && !r->flight->active && r->flight->users == 0) {
        Py_VISIT(r->flight->callback);
        Py_VISIT(r->flight->call.result);
    }
    return 0;
}

static void let_go(struct request *r)
{
    struct abcpy_flight *f = r->flight;
    r->flight = NULL;
    if (!f)
        return;
    f->owner = NULL;
    if (r->comm->pid != (long)getpid() || flight_try_free(f))
        return; /* a forked child leaves the parent's alone */
}

static int request_clear(PyObject *self)
{
    struct request *r = (struct request *)self;
    if (r->flight && !r->flight->active && r->flight->users == 0)
        let_go(r);
    Py_CLEAR(r->kept);
    return 0;
}

static void request_dealloc(PyObject *self)
{
    struct request *r = (struct request *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject *error, *value, *trace;
    PyObject_GC_UnTrack(self);
    PyErr_Fetch(&error, &value, &trace);
    if (r->comm)
        let_go(r);
    Py_CLEAR(r->kept);
    PyErr_Restore(error, value, trace);
    Py_CLEAR(r->comm);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

int abcpy_request_add(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"start", request_start, METH_NOARGS, "Start the operation, again or for the first time; returns the request."},
        {"test", request_test, METH_NOARGS, "Advance, and say whether the operation is over. Raises its error."},
        {"wait", request_wait, METH_NOARGS, "Block until the operation is over; returns the output, or raises the error."},
        {NULL}};
    static PyGetSetDef members[] = {
        {"active", request_active, NULL, "True from start until test, wait or the callback has told the end.", NULL},
        {"communicator", request_comm, NULL, "The communicator of the operation.", NULL},
        {NULL}};
    static PyType_Slot slots[] = {{Py_tp_dealloc, request_dealloc},
                                  {Py_tp_traverse, request_traverse},
                                  {Py_tp_clear, request_clear},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, members},
                                  {Py_am_await, request_await},
                                  {Py_tp_iternext, request_next},
                                  {Py_tp_doc, "An operation that was started, or can be. Made by the methods of Communicator."},
                                  {0, NULL}};
    static PyType_Spec spec = {"abcomm.Request", sizeof(struct request), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
    request_type = (PyTypeObject *)PyType_FromSpec(&spec);
    return request_type ? PyModule_AddObjectRef(module, "Request", (PyObject *)request_type) : -1;
}
