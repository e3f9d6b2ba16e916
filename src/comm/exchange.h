/*
 * exchange.h - how ranks find each other: instances of abc_exchange, and an all-gather over any of them. Used only while a
 * communicator is created; allocates, blocks, uses system calls.
 */
#ifndef ABCI_EXCHANGE_H
#define ABCI_EXCHANGE_H

#include <stdbool.h>

#include <abcomm/abcomm.h>

#define ABCI_KEY_BYTES 32
#define ABCI_VALUE_MAX 65536

/* What the TCP rendezvous needs. */
struct abci_rendezvous_config {
    int rank, nranks;
    const char *address;      /* host:port, [ipv6]:port */
    int listen_fd;            /* rank 0: an inherited listening socket, or -1 to bind `address` */
    const unsigned char *key; /* ABCI_KEY_BYTES, or NULL: no key, loopback addresses only */
    double timeout;           /* seconds for the whole rendezvous */
};
struct abci_rendezvous;

/*
 * Rank 0 starts a service thread on the address; the others connect to it, retrying until the timeout. On return `exchange` works.
 * A peer that does not prove the key, speaks another protocol or claims a rank twice is dropped without disturbing the others.
 */
int abci_rendezvous_open(const struct abci_rendezvous_config *config, struct abci_rendezvous **rdv, abc_exchange *exchange);
/* Rank 0: serves until all ranks have closed or the timeout; others: say goodbye. Always frees. */
int abci_rendezvous_close(struct abci_rendezvous *rdv);

/*
 * Every rank gives `length` bytes (at most 4096, the same on all) under `prefix` and gets all of them in rank order in `all`.
 * status is this rank's own so far: if any rank gives an error all ranks return ABC_ERR_PEER with that rank named, none waits in
 * vain.
 */
int abci_exchange_gather(const abc_exchange *exchange, const char *prefix, int rank, int nranks, int status, const void *mine,
                         size_t length, void *all, double timeout);

/*
 * Has a rank told, or has the exchange noticed, a failure of the gather under `prefix`? Waits for one up to `timeout`. ABC_OK when
 * nothing is known; else the error, which names the rank.
 */
int abci_exchange_look(const abc_exchange *exchange, const char *prefix, double timeout);

/* A launcher's own table, over which rank 0 tells address and key. */
enum abci_launch_table { ABCI_TABLE_NONE, ABCI_TABLE_PMI, ABCI_TABLE_PMIX, ABCI_TABLE_TORCH };

/* Where this process stands in a job, from the environment. */
struct abci_launch {
    int rank, nranks; /* nranks -1: the table knows */
    char address[256];
    int listen_fd;
    enum abci_launch_table table; /* to be asked by abci_launch_agree */
    bool local;                   /* all ranks are on this machine, the launcher says */
    int have_key;
    unsigned char key[ABCI_KEY_BYTES];
};
/* ABC_ERR_ENVIRONMENT with a text that names the missing or contradicting variables. */
int abci_launch_detect(struct abci_launch *launch);
/*
 * Ask the launcher's table for what the environment did not say: address, key, number of ranks. Collective over the ranks the first
 * time; the process keeps the answer, and rank 0 its listening socket. Without a table it does nothing.
 */
int abci_launch_agree(struct abci_launch *launch, double timeout);
/*
 * The job key alone, for a caller that names rank and address itself: from ABCOMM_KEY_FD or ABCOMM_KEY_FILE; *have_key is 0 when
 * neither is set.
 */
int abci_launch_key(int *have_key, unsigned char key[ABCI_KEY_BYTES]);
/* Turn key material of any length >= 16 into ABCI_KEY_BYTES. */
int abci_key_derive(const void *material, size_t length, unsigned char key[ABCI_KEY_BYTES]);

#endif
