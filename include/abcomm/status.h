/* status.h - the one table of status codes: name, value, meaning, remedy. docs/errors.md and abc_status_text() are made from it. */
#ifndef ABCOMM_STATUS_H
#define ABCOMM_STATUS_H

/* X(name, value, what it means, what to do). 0 is success, positive is progress, negative is an error. Values never change. */
#define ABC_STATUS_MAP(X)                                                                                                          \
    X(OK, 0, "success", "nothing to do")                                                                                           \
    X(PENDING, 1, "the operation is still in progress", "call abc_test or abc_wait again")                                         \
    X(ERR_ARGUMENT, -1, "an argument is invalid", "correct the argument that the text names; the communicator stays usable")       \
    X(ERR_HANDLE, -2, "a handle is null, freed or of another process",                                                             \
      "use a handle that this process created and has not freed; after fork() only the parent may use it")                         \
    X(ERR_MEMORY, -3, "memory could not be allocated", "free memory or raise the limit (ulimit -v, cgroup memory.max)")            \
    X(ERR_SYSTEM, -4, "a system call failed", "read the system's message in the text; often a limit (ulimit -n) or a permission")  \
    X(ERR_ENVIRONMENT, -5, "the environment does not describe a job",                                                              \
      "start the program with `abcomm run -n N`, or set ABCOMM_RANK, ABCOMM_SIZE and ABCOMM_ADDR, or fill abc_comm_config")        \
    X(ERR_ADDRESS, -6, "the rendezvous address cannot be used", "give host:port or [ipv6]:port with a free port on rank 0's host") \
    X(ERR_AUTH, -7, "the job key is missing or wrong", "give every rank the same key (ABCOMM_KEY_FILE, mode 0600)")                \
    X(ERR_TIMEOUT, -8, "a peer did not arrive in time",                                                                            \
      "look at the rank that the text names: abcomm inspect PID; raise ABCOMM_TIMEOUT if it is only slow")                         \
    X(ERR_PEER, -9, "a peer has died or left", "read that rank's own output; make a new communicator of the survivors")            \
    X(ERR_MISMATCH, -10, "ranks called different operations",                                                                      \
      "compare the two calls in the text; all ranks must start the same calls in the same order")                                  \
    X(ERR_ABORTED, -11, "the communicator was aborted", "destroy it and make a new one")                                           \
    X(ERR_STATE, -12, "the call does not fit the object's state", "wait for the request, or destroy the communicator first")       \
    X(ERR_UNSUPPORTED, -13, "the combination is not supported", "use one of the combinations that the text names")                 \
    X(ERR_PLAN, -14, "a plan is malformed or incorrect", "run `abcomm plan --file FILE --check` to see which step is wrong")       \
    X(ERR_VERSION, -15, "ranks use different versions or settings", "load the same libabcomm and settings on every rank")          \
    X(ERR_INTERNAL, -16, "the library broke one of its own rules", "report it with the text and `abcomm info`")

typedef enum abc_status {
#define ABC_STATUS_ENUM(name, value, text, remedy) ABC_##name = value,
    ABC_STATUS_MAP(ABC_STATUS_ENUM)
#undef ABC_STATUS_ENUM
} abc_status;

#endif
