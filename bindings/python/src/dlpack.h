/*
 * dlpack.h - the layout of DLPack tensors, versions 0 and 1, as far as a reader of CPU memory needs it. Written after the public
 * specification; only names of fields differ.
 */
#ifndef ABCPY_DLPACK_H
#define ABCPY_DLPACK_H

#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_CPU 1
#define DLPACK_READ_ONLY 1u

enum {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_BFLOAT = 4,
    DLPACK_COMPLEX = 5,
    DLPACK_BOOL = 6,
    DLPACK_FLOAT8_E4M3FN = 10,
    DLPACK_FLOAT8_E5M2 = 12,
    DLPACK_NONE = 255, /* no tensor has this */
};

struct dlpack_type {
    uint8_t code, bits;
    uint16_t lanes;
};

struct dlpack_tensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct dlpack_type type;
    int64_t *shape, *strides; /* strides in elements; NULL means dense */
    uint64_t byte_offset;
};

/* What a capsule "dltensor" points to. */
struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *);
};

/* What a capsule "dltensor_versioned" points to. */
struct dlpack_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dlpack_versioned *);
    uint64_t flags;
    struct dlpack_tensor tensor;
};

#endif
