/*
 * group.c - which group of calls the calling thread has open. Here at the bottom, because who creates or splits communicators must
 * know as well as who takes calls. Any thread; costs one load while no thread has a group.
 */
#include "base/base.h"

uint32_t abci_groups;
static _Thread_local struct abci_group *here;

struct abci_group *abci_group_of_thread(void)
{
    return here;
}

void abci_group_set(struct abci_group *group)
{
    if (!here != !group)
        __atomic_fetch_add(&abci_groups, group ? 1 : UINT32_MAX, __ATOMIC_RELAXED);
    here = group;
}
