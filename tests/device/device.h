/*
 * device.h - a fake accelerator for tests: memory that the host cannot touch, behind a thread of its own that copies, computes and
 * calls back, with streams as queues. It stands for what the runtimes of accelerators offer: work is queued and done later, in
 * order within a stream, in any order between streams; an event (here: a gate) makes a stream wait; a callback runs when the work
 * before it is done. Used by test_device.c; one device a rank.
 */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

struct device;
struct stream;

/* Opens once and stays open; a stream that waits for it goes on. Zeroed memory is a closed gate. */
struct gate {
    bool open;
};

/* Runs on the device's thread; may queue work and start operations, must not wait. `failed`: an earlier copy of the stream has. */
typedef void (*device_call)(void *context, bool failed);
/* Runs on the device's thread with an address at which it may touch the memory. */
typedef void (*device_kernel)(void *memory, size_t bytes, void *context);

struct device *device_open(void);
/* What is queued and can be done is done first; then the thread ends and the memory is gone. */
void device_close(struct device *device);
/* An address that only stands for the memory: the host faults where it touches it. NULL when there is no more. */
void *device_alloc(struct device *device, size_t bytes);

struct stream *stream_create(struct device *device);
/* The n-th copy from now on fails, and with it the stream: nothing is copied there any more. */
void stream_break(struct stream *stream, int n);
void stream_copy_out(struct stream *stream, void *host, const void *memory, size_t bytes);
void stream_copy_in(struct stream *stream, void *memory, const void *host, size_t bytes);
void stream_kernel(struct stream *stream, device_kernel kernel, void *memory, size_t bytes, void *context);
void stream_call(struct stream *stream, device_call call, void *context);
void stream_wait(struct stream *stream, const struct gate *gate);
void gate_open(struct device *device, struct gate *gate);

#endif
