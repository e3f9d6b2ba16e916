/*
 * launch.h - what the files of the launchers share: launch.c (who am I), launch_key.c, launch_agree.c (where is rank 0, over the
 * launcher's own table), launch_pmi.c, launch_pmix.c, launch_torch.c (three such tables) and interface.c (which address to listen
 * on).
 */
#ifndef ABCI_LAUNCH_H
#define ABCI_LAUNCH_H

#include "comm/exchange.h"

#define ABCI_LAUNCH_TEXT 512 /* of what rank 0 tells: address and key; PMI-1 carries 1023 bytes */

/*
 * One table of a launcher. Rank 0 gives `text`, the others receive it; all return within `deadline` (abci_now). The text has no
 * space, no '=' and no line end, which PMI-1 could not carry. *nranks is set where the environment did not say it.
 */
typedef int (*abci_launch_share_fn)(const struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT], double deadline, int *nranks);
int abci_launch_share_pmi(const struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT], double deadline, int *nranks);
int abci_launch_share_pmix(const struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT], double deadline, int *nranks);
int abci_launch_share_torch(const struct abci_launch *launch, char text[ABCI_LAUNCH_TEXT], double deadline, int *nranks);

/* Can libpmix be opened? Opens it, nothing more. */
bool abci_launch_pmix_present(void);
/* An MPI library in this process that is initialised keeps the launcher's table open itself. */
bool abci_launch_mpi_active(void);

/*
 * The address to listen on, as a host for abci_address_parse, by the grammar of ABCOMM_SOCKET_IFNAME: "eth,ib" prefixes, "^docker"
 * all but, "=eth0" exact, "^=eth0" all but exactly; "" chooses by itself.
 */
int abci_interface_host(const char *spec, char *host, size_t capacity);

#endif
