/*
 * comm.c - abcomm.Communicator: creation, the blocking call, split, abort, and the end. Blocking calls run inline in the calling
 * thread, without the GIL. The end is orderly whoever causes it: close, the garbage collector or the end of the interpreter
 * complete what is in flight (peers depend on it), and only then release; the last two do not wait long for it.
 */
#include "ext.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define GRACE 5.0 /* seconds that operations in flight get when nobody waits for them any more */

PyTypeObject *abcpy_comm_type;
static struct abcpy_comm *open_comms;

bool abcpy_comm_enter(struct abcpy_comm *c, bool waits)
{
    if (!c->comm || c->closing) {
        abcpy_raise(ABC_ERR_HANDLE, "the communicator is closed");
        return false;
    }
    if (waits && abcpy_in_callback()) {
        abcpy_raise(ABC_ERR_STATE, "a callback may start operations, but not wait for any");
        return false;
    }
    c->users++;
    return true;
}

void abcpy_comm_leave(struct abcpy_comm *c)
{
    c->users--;
}

PyObject *abcpy_comm_raise(struct abcpy_comm *c, int status)
{
    abcpy_raise_last(status);
    if (c->comm && abc_comm_status(c->comm) != ABC_OK)
        c->told = true;
    return NULL;
}

/* ---- creation ---- */

static void adopt(struct abcpy_comm *c, abc_comm *comm)
{
    c->comm = comm;
    c->rank = abc_comm_rank(comm);
    c->size = abc_comm_size(comm);
    c->pid = (long)getpid();
    c->next = open_comms;
    c->at = &open_comms;
    if (open_comms)
        open_comms->at = &c->next;
    open_comms = c;
}

static void forget(struct abcpy_comm *c)
{
    if (!c->at)
        return;
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    c->at = NULL;
}

static int create(struct abcpy_comm *c, abc_comm_config *config, PyObject *object)
{
    struct abcpy_exchange exchange;
    abc_comm *comm = NULL;
    int status;
    if (object && object != Py_None) {
        abcpy_exchange_open(&exchange, object);
        config->exchange = &exchange.table;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = abc_comm_create(config, &comm);
    Py_END_ALLOW_THREADS;
    if (status == ABC_OK)
        adopt(c, comm);
    else
        abcpy_raise_last(status);
    if (config->exchange)
        abcpy_exchange_close(&exchange);
    return status == ABC_OK ? 0 : -1;
}

static int comm_init(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"rank", "size", "address", "key", "exchange", "connect_timeout", "timeout", "progress_thread", NULL};
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    abc_comm_config config;
    PyObject *exchange = NULL;
    const char *key = NULL;
    Py_ssize_t key_length = 0;
    abc_comm_config_init(&config);
    config.rank = -1;
    if (c->comm)
        return abcpy_raise(ABC_ERR_STATE, "the communicator exists already"), -1;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|iizz#Oddi:Communicator", names, &config.rank, &config.nranks,
                                     &config.address, &key, &key_length, &exchange, &config.connect_timeout, &config.timeout,
                                     &config.progress_thread))
        return -1;
    config.key = key;
    config.key_length = (size_t)key_length;
    return create(c, &config, exchange);
}

static PyObject *comm_split(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"color", "key", NULL};
    struct abcpy_comm *c = (struct abcpy_comm *)self, *made;
    int color, key = 0, status;
    abc_comm *comm = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "i|i:split", names, &color, &key) || !abcpy_comm_enter(c, true))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = abc_comm_split(c->comm, color, key, &comm);
    Py_END_ALLOW_THREADS;
    abcpy_comm_leave(c);
    if (status != ABC_OK)
        return abcpy_comm_raise(c, status);
    if (!comm)
        Py_RETURN_NONE;
    made = (struct abcpy_comm *)PyType_GenericAlloc(Py_TYPE(self), 0);
    if (made)
        adopt(made, comm);
    else
        abc_comm_destroy(comm);
    return (PyObject *)made;
}

/* ---- operations ---- */

static PyObject *comm_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    struct abcpy_arguments arguments;
    struct abcpy_call call;
    PyObject *result = NULL;
    int status;
    if (abcpy_arguments_take(args, nargs, keywords, &arguments) != 0)
        return NULL;
    if (arguments.at[ABCPY_CALLBACK])
        return abcpy_raise(ABC_ERR_ARGUMENT, "a blocking call has no callback; start the operation instead");
    if (!abcpy_comm_enter(c, true))
        return NULL;
    if (abcpy_in_group())
        return abcpy_group_run(c, &arguments);
    if (abcpy_call_take(c->rank, c->size, &arguments, &call) == 0) {
        Py_BEGIN_ALLOW_THREADS;
        status = abc_run(c->comm, &call.call);
        Py_END_ALLOW_THREADS;
        result = status == ABC_OK ? abcpy_call_result(&call) : abcpy_comm_raise(c, status);
        abcpy_call_release(&call);
    }
    abcpy_comm_leave(c);
    return result;
}

static PyObject *comm_start(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    struct abcpy_arguments arguments;
    if (abcpy_arguments_take(args, nargs, keywords, &arguments) != 0)
        return NULL;
    return abcpy_request_make((struct abcpy_comm *)self, &arguments, true);
}

static PyObject *comm_prepare(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    struct abcpy_arguments arguments;
    if (abcpy_arguments_take(args, nargs, keywords, &arguments) != 0)
        return NULL;
    return abcpy_request_make((struct abcpy_comm *)self, &arguments, false);
}

static PyObject *comm_explain(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords)
{
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    struct abcpy_arguments arguments;
    struct abcpy_call call;
    PyObject *result = NULL;
    char text[256];
    int status;
    if (abcpy_arguments_take(args, nargs, keywords, &arguments) != 0 || !abcpy_comm_enter(c, false))
        return NULL;
    if (abcpy_call_take(c->rank, c->size, &arguments, &call) == 0) {
        Py_BEGIN_ALLOW_THREADS;
        status = abc_explain(c->comm, &call.call, text, sizeof text);
        Py_END_ALLOW_THREADS;
        result = status == ABC_OK ? PyUnicode_FromString(text) : abcpy_comm_raise(c, status);
        abcpy_call_release(&call);
    }
    abcpy_comm_leave(c);
    return result;
}

static PyObject *comm_load_plan(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"text", "check", NULL};
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    const char *text;
    int check = 1, status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "s|p:load_plan", names, &text, &check) || !abcpy_comm_enter(c, true))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = abc_comm_load_plan(c->comm, text, check);
    Py_END_ALLOW_THREADS;
    abcpy_comm_leave(c);
    if (status != ABC_OK)
        return abcpy_comm_raise(c, status);
    Py_RETURN_NONE;
}

static PyObject *comm_abort(PyObject *self, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"reason", NULL};
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    const char *reason = NULL;
    int status;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "|z:abort", names, &reason) || !abcpy_comm_enter(c, false))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    status = abc_comm_abort(c->comm, reason);
    Py_END_ALLOW_THREADS;
    c->told = true; /* who aborts knows */
    abcpy_comm_leave(c);
    if (status != ABC_OK)
        return abcpy_raise_last(status);
    Py_RETURN_NONE;
}

/* ---- the end ---- */

static void nap(void)
{
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
}

/* No call can begin any more. Abort what does not end by itself; false if a thread is still inside after all that. */
static bool quiet(struct abcpy_comm *c)
{
    bool finished = abcpy_flights_finish(c, GRACE);
    if (!finished || c->users > 0) {
        char reason[64];
        PyOS_snprintf(reason, sizeof reason, "rank %d ended with operations in progress", c->rank);
        Py_BEGIN_ALLOW_THREADS;
        abc_comm_abort(c->comm, reason);
        Py_END_ALLOW_THREADS;
        finished = abcpy_flights_finish(c, GRACE);
    }
    for (int i = 0; i < 1000 && c->users > 0; i++) {
        Py_BEGIN_ALLOW_THREADS;
        nap();
        Py_END_ALLOW_THREADS;
    }
    return finished && c->users == 0;
}

/* Release; the status of the failure that ended the communicator. Whoever is asked last leaves rather a leak than a dangling use.
 */
static int destroy(struct abcpy_comm *c)
{
    abc_comm *comm = c->comm;
    int status;
    /* A callback that has returned may not have left the library yet. */
    for (int i = 0; i < 1000 && !abcpy_flights_free(c); i++) {
        Py_BEGIN_ALLOW_THREADS;
        nap();
        Py_END_ALLOW_THREADS;
    }
    if (c->flights)
        return ABC_ERR_STATE;
    c->comm = NULL;
    forget(c);
    Py_BEGIN_ALLOW_THREADS;
    status = abc_comm_destroy(comm);
    Py_END_ALLOW_THREADS;
    return status;
}

static PyObject *comm_close(PyObject *self, PyObject *unused)
{
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    if (!c->comm)
        Py_RETURN_NONE;
    if (c->pid != (long)getpid()) { /* the parent's */
        c->comm = NULL;
        forget(c);
        Py_RETURN_NONE;
    }
    if (abcpy_in_callback())
        return abcpy_raise(ABC_ERR_STATE, "a callback may not close a communicator");
    if (c->users > 0 && abcpy_in_group())
        return abcpy_raise(ABC_ERR_STATE, "a communicator may not be closed in a group that has calls of it; end the group first");
    if (c->users > 0 || c->closing)
        return abcpy_raise(ABC_ERR_STATE, "another thread is inside a call on the communicator; let it end, or abort, first");
    c->closing = true;
    abcpy_flights_finish(c, -1);
    int status = destroy(c);
    if (status != ABC_OK && !c->told)
        return abcpy_raise_last(status);
    Py_RETURN_NONE;
}

/* The last reference is gone, or the interpreter ends: nobody is there to be told. */
static void end(struct abcpy_comm *c)
{
    if (!c->comm || c->closing)
        return;
    if (c->pid != (long)getpid()) {
        c->comm = NULL;
        forget(c);
        return;
    }
    c->closing = true;
    if (quiet(c))
        destroy(c);
    else
        forget(c);
}

static PyObject *end_all(PyObject *module, PyObject *unused)
{
    while (open_comms) {
        struct abcpy_comm *c = (struct abcpy_comm *)Py_NewRef((PyObject *)open_comms);
        end(c);
        forget(c); /* also when another thread is closing it: on to the next */
        Py_DECREF((PyObject *)c);
    }
    Py_RETURN_NONE;
}

static void comm_dealloc(PyObject *self)
{
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject *error, *value, *trace;
    PyErr_Fetch(&error, &value, &trace);
    forget(c); /* first: end lets other threads run, and they must not find it any more */
    end(c);
    PyErr_Restore(error, value, trace);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self); /* subclasses have another one */
    Py_DECREF(type);
}

/* ---- what it is ---- */

static PyObject *comm_rank(PyObject *self, void *closure)
{
    return PyLong_FromLong(((struct abcpy_comm *)self)->rank);
}

static PyObject *comm_size(PyObject *self, void *closure)
{
    return PyLong_FromLong(((struct abcpy_comm *)self)->size);
}

static PyObject *comm_closed(PyObject *self, void *closure)
{
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    return PyBool_FromLong(!c->comm || c->closing);
}

static PyObject *comm_status(PyObject *self, void *closure)
{
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    return PyUnicode_FromString(abc_status_name(c->comm ? abc_comm_status(c->comm) : ABC_ERR_HANDLE));
}

static PyObject *comm_error(PyObject *self, void *closure)
{
    struct abcpy_comm *c = (struct abcpy_comm *)self;
    char text[1024] = "";
    if (c->comm)
        abc_comm_error(c->comm, text, sizeof text);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))comm_run, METH_FASTCALL | METH_KEYWORDS,
     "Run one operation to its end. See docs/python.md, \"Raw calls\"."},
    {"start", (PyCFunction)(void (*)(void))comm_start, METH_FASTCALL | METH_KEYWORDS, "Start one operation; returns its Request."},
    {"prepare", (PyCFunction)(void (*)(void))comm_prepare, METH_FASTCALL | METH_KEYWORDS,
     "Make a Request that is not started yet."},
    {"split", (PyCFunction)(void (*)(void))comm_split, METH_VARARGS | METH_KEYWORDS,
     "The communicator of the ranks with one color."},
    {"explain", (PyCFunction)(void (*)(void))comm_explain, METH_FASTCALL | METH_KEYWORDS,
     "Say how run would do a call, without doing it: \"twoshot@1048576 by price\"."},
    {"load_plan", (PyCFunction)(void (*)(void))comm_load_plan, METH_VARARGS | METH_KEYWORDS,
     "Add an algorithm from a plan in JSON."},
    {"abort", (PyCFunction)(void (*)(void))comm_abort, METH_VARARGS | METH_KEYWORDS, "End the communicator on all ranks now."},
    {"close", comm_close, METH_NOARGS, "Complete what is in flight and release the communicator."},
    {NULL}};
static PyMethodDef functions[] = {
    {"_end_all", end_all, METH_NOARGS, "End all communicators of the process, at the end of the interpreter."}, {NULL}};
static PyGetSetDef members[] = {
    {"rank", comm_rank, NULL, "This rank.", NULL},
    {"size", comm_size, NULL, "Number of ranks.", NULL},
    {"closed", comm_closed, NULL, "True once close was called.", NULL},
    {"status", comm_status, NULL, "Name of the status: ABC_OK while usable.", NULL},
    {"error", comm_error, NULL, "Text of the failure that ended the communicator; empty while usable.", NULL},
    {NULL}};

int abcpy_comm_add(PyObject *module)
{
    static PyType_Slot slots[] = {{Py_tp_init, comm_init},
                                  {Py_tp_dealloc, comm_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_tp_getset, members},
                                  {Py_tp_doc, "One rank's end of a communicator."},
                                  {0, NULL}};
    static PyType_Spec spec = {"abcomm._abcomm.Communicator", sizeof(struct abcpy_comm), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
    abcpy_comm_type = (PyTypeObject *)PyType_FromSpec(&spec);
    if (!abcpy_comm_type || PyModule_AddFunctions(module, functions) != 0)
        return -1;
    return PyModule_AddObjectRef(module, "Communicator", (PyObject *)abcpy_comm_type);
}
