/*
 * op.c - stage 0: operations that the caller makes: a table of ABC_OP_LIMIT - ABC_OP_USER rows under a lock, for the whole process.
 * Of the built-in ones only the question which types they fit. Any thread.
 */
#include <pthread.h>
#include <string.h>

#include "api/api.h"

#define ROWS (ABC_OP_LIMIT - ABC_OP_USER)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct abci_user_op table[ROWS];

static bool taken(const struct abci_user_op *user)
{
    return user->fn || user->scaled;
}

static int add(const struct abci_user_op *user, abc_op *op)
{
    int row = 0;
    abci_fork_guard(&lock);
    pthread_mutex_lock(&lock);
    while (row < ROWS && taken(&table[row]))
        row++;
    if (row < ROWS)
        table[row] = *user;
    pthread_mutex_unlock(&lock);
    if (row == ROWS)
        return abci_error(ABC_ERR_STATE, "there are %d user operations already; free one first", ROWS);
    *op = (abc_op)(ABC_OP_USER + row);
    return ABC_OK;
}

ABC_API int abc_op_create(abc_op_fn fn, int commutes, void *context, abc_op *op)
{
    if (!fn || !op)
        return abci_error(ABC_ERR_ARGUMENT, "the function or the place for the operation is null");
    const struct abci_user_op user = {.fn = fn, .context = context, .commutes = commutes != 0};
    return add(&user, op);
}

ABC_API int abc_op_create_scaled(const void *scalar, abc_type type, abc_op *op)
{
    if (!scalar || !op)
        return abci_error(ABC_ERR_ARGUMENT, "the scalar or the place for the operation is null");
    if (abc_type_size(type) == 0)
        return abci_error(ABC_ERR_ARGUMENT, "type %d is unknown; abc_type lists %d types", (int)type, ABC_TYPE_COUNT);
    if (!abci_reduce_has(type, ABC_PROD) || type == ABC_BOOL)
        return abci_error(ABC_ERR_UNSUPPORTED, "a scaled sum of %s means nothing; use a number type", abc_type_name(type));
    struct abci_user_op user = {.commutes = 1, .scaled = true, .type = type};
    memcpy(user.scalar, scalar, abc_type_size(type));
    return add(&user, op);
}

ABC_API void abc_op_fail(const char *reason)
{
    abci_reduce_fail(reason);
}

int abci_op_get(abc_op op, struct abci_user_op *user)
{
    int row = (int)op - ABC_OP_USER;
    *user = (struct abci_user_op){0};
    if (row >= 0 && row < ROWS) {
        pthread_mutex_lock(&lock);
        *user = table[row];
        pthread_mutex_unlock(&lock);
    }
    return taken(user) ? ABC_OK : abci_error(ABC_ERR_ARGUMENT, "operation %d is not one of abc_op_create, or was freed", (int)op);
}

ABC_API int abc_op_free(abc_op op)
{
    struct abci_user_op user;
    int status = abci_op_get(op, &user);
    if (status != ABC_OK)
        return status;
    pthread_mutex_lock(&lock);
    table[(int)op - ABC_OP_USER] = (struct abci_user_op){0};
    pthread_mutex_unlock(&lock);
    return ABC_OK;
}

ABC_API int abc_op_fits(abc_op op, abc_type type)
{
    struct abci_user_op user;
    if (abc_type_size(type) == 0)
        return 0;
    if ((unsigned)op < ABC_OP_USER || (unsigned)op >= ABC_OP_LIMIT)
        return abci_reduce_has(type, op);
    pthread_mutex_lock(&lock);
    user = table[(int)op - ABC_OP_USER];
    pthread_mutex_unlock(&lock);
    return user.fn || (user.scaled && user.type == type);
}
