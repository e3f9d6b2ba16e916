/*
 * completions.c - abcomm.Completions: requests that are over, for threads of the program that handle them. The thread that drives
 * an operation to its end only links a node here, without the GIL; so it never waits for Python, as it would with a callback. Who
 * takes waits without the GIL too.
 *
 * One lock guards all queues and the link between a flight and its node: whoever adds and whoever completes may be at it at once.
 */
#include "ext.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

struct completions {
    PyObject_HEAD struct abcpy_node *first, **last;
    pthread_cond_t filled;
};
struct abcpy_node {
    struct completions *queue; /* counted */
    PyObject *item;            /* counted */
    struct abcpy_node *next;
};
static PyTypeObject *completions_type;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the link between flights and queues ---- */

/* With the lock held. */
static void append(struct abcpy_node *node)
{
    struct completions *q = node->queue;
    node->next = NULL;
    *q->last = node;
    q->last = &node->next;
    pthread_cond_signal(&q->filled);
}

bool abcpy_flight_begins(struct abcpy_flight *f)
{
    pthread_mutex_lock(&lock);
    bool was_over = f->over;
    f->over = false;
    pthread_mutex_unlock(&lock);
    return was_over;
}

void abcpy_flight_is_over(struct abcpy_flight *f)
{
    pthread_mutex_lock(&lock);
    f->over = true;
    if (f->node)
        append(f->node);
    f->node = NULL;
    pthread_mutex_unlock(&lock);
}

static void node_free(struct abcpy_node *node)
{
    Py_XDECREF((PyObject *)node->queue);
    Py_XDECREF(node->item);
    PyMem_Free(node);
}

void abcpy_flight_unlink(struct abcpy_flight *f)
{
    pthread_mutex_lock(&lock);
    struct abcpy_node *node = f->node;
    f->node = NULL;
    pthread_mutex_unlock(&lock);
    if (node)
        node_free(node);
}

static struct abcpy_node *node_make(PyObject *queue, PyObject *item)
{
    struct abcpy_node *node = PyMem_Malloc(sizeof *node);
    if (!node)
        return (struct abcpy_node *)PyErr_NoMemory();
    node->queue = (struct completions *)Py_NewRef(queue);
    node->item = Py_NewRef(item);
    return node;
}

/* ---- the Python object ---- */

static PyObject *completions_add(PyObject *self, PyObject *args)
{
    PyObject *request, *item;
    bool linked = true;
    if (!PyArg_ParseTuple(args, "OO:add", &request, &item))
        return NULL;
    struct abcpy_flight *f = abcpy_flight_of(request);
    struct abcpy_node *node = f ? node_make(self, item) : NULL;
    if (!node)
        return NULL;
    pthread_mutex_lock(&lock);
    if (f->over)
        append(node);
    else if (!f->node)
        f->node = node;
    else
        linked = false;
    pthread_mutex_unlock(&lock);
    if (linked)
        Py_RETURN_NONE;
    node_free(node);
    return abcpy_raise(ABC_ERR_STATE, "the request has been added to completions already");
}

static PyObject *completions_put(PyObject *self, PyObject *item)
{
    struct abcpy_node *node = node_make(self, item);
    if (!node)
        return NULL;
    pthread_mutex_lock(&lock);
    append(node);
    pthread_mutex_unlock(&lock);
    Py_RETURN_NONE;
}

/* The first node, or NULL when the time is over. Negative seconds: no limit. */
static struct abcpy_node *wait_for_node(struct completions *q, double seconds)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (seconds > 0) {
        end.tv_sec += (time_t)seconds;
        end.tv_nsec += (long)(1e9 * (seconds - (double)(time_t)seconds));
        end.tv_sec += end.tv_nsec / 1000000000;
        end.tv_nsec %= 1000000000;
    }
    pthread_mutex_lock(&lock);
    while (!q->first) {
        int failed = seconds < 0 ? pthread_cond_wait(&q->filled, &lock) : pthread_cond_timedwait(&q->filled, &lock, &end);
        if (failed == ETIMEDOUT)
            break;
    }
    struct abcpy_node *node = q->first;
    if (node) {
        q->first = node->next;
        if (!q->first)
            q->last = &q->first;
    }
    pthread_mutex_unlock(&lock);
    return node;
}

static PyObject *completions_take(PyObject *self, PyObject *args)
{
    double seconds = -1;
    struct abcpy_node *node;
    if (!PyArg_ParseTuple(args, "|d:take", &seconds))
        return NULL;
    if (seconds > 1e9)
        seconds = -1;
    Py_BEGIN_ALLOW_THREADS;
    node = wait_for_node((struct completions *)self, seconds);
    Py_END_ALLOW_THREADS;
    if (!node)
        return abcpy_raise(ABC_ERR_TIMEOUT, "nothing was completed within %ld ms", (long)(seconds * 1e3));
    PyObject *item = Py_NewRef(node->item);
    node_free(node);
    return item;
}

static PyObject *completions_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    pthread_condattr_t attributes;
    struct completions *q = (struct completions *)PyType_GenericAlloc(type, 0);
    if (!q)
        return NULL;
    q->last = &q->first;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&q->filled, &attributes);
    pthread_condattr_destroy(&attributes);
    return (PyObject *)q;
}

/* Nodes hold their queue, so none is left; and nobody waits, for that needs a reference too. */
static void completions_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pthread_cond_destroy(&((struct completions *)self)->filled);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* A forked child has none of the threads that might have held the lock. */
static void forked(void)
{
    pthread_mutex_init(&lock, NULL);
}

int abcpy_completions_add(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"add", completions_add, METH_VARARGS, "Let take return `item` once the request is over: at once if it is."},
        {"put", completions_put, METH_O, "Let take return `item` now."},
        {"take", completions_take, METH_VARARGS,
         "Wait, without the GIL, for the next item. Raises abcomm.TimeoutError when the seconds are over; below 0: no limit."},
        {NULL}};
    static PyType_Slot slots[] = {{Py_tp_new, completions_new},
                                  {Py_tp_dealloc, completions_dealloc},
                                  {Py_tp_methods, methods},
                                  {Py_tp_doc,
                                   "Completions()\n--\n\nItems of requests that are over, in the order of their ends. Any "
                                   "number of threads may take them."},
                                  {0, NULL}};
    static PyType_Spec spec = {"abcomm.Completions", sizeof(struct completions), 0, Py_TPFLAGS_DEFAULT, slots};
    completions_type = (PyTypeObject *)PyType_FromSpec(&spec);
    pthread_atfork(NULL, NULL, forked);
    return completions_type ? PyModule_AddObjectRef(module, "Completions", (PyObject *)completions_type) : -1;
}
