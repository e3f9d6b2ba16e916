/* op.c - stage 0: user-defined operations of this process: a table of ABC_OP_LIMIT - ABC_OP_USER rows under a lock. */
#include <pthread.h>

#include "api/api.h"

#define ROWS (ABC_OP_LIMIT - ABC_OP_USER)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct abci_user_op table[ROWS];

ABC_API int abc_op_create(abc_op_fn fn, int commutes, void *context, abc_op *op)
{
    if (!fn || !op)
        return abci_error(ABC_ERR_ARGUMENT, "the function or the place for the operation is null");
    int row = 0;
    abci_fork_guard(&lock);
    pthread_mutex_lock(&lock);
    while (row < ROWS && table[row].fn)
        row++;
    if (row < ROWS)
        table[row] = (struct abci_user_op){fn, context, commutes != 0};
    pthread_mutex_unlock(&lock);
    if (row == ROWS)
        return abci_error(ABC_ERR_STATE, "there are %d user operations already; free one first", ROWS);
    *op = (abc_op)(ABC_OP_USER + row);
    return ABC_OK;
}

int abci_op_get(abc_op op, struct abci_user_op *user)
{
    int row = (int)op - ABC_OP_USER;
    user->fn = NULL;
    if (row >= 0 && row < ROWS) {
        pthread_mutex_lock(&lock);
        *user = table[row];
        pthread_mutex_unlock(&lock);
    }
    return user->fn ? ABC_OK : abci_error(ABC_ERR_ARGUMENT, "operation %d is not one of abc_op_create, or was freed", (int)op);
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
