/*
 * contract.c - contract NAME: one check of a contract of docs/contracts.md, with the testing library. Exit code 0 when the contract
 * holds. ABCOMM_TEST_MUTATE=mutation breaks it on purpose; the check must fail then. `contract --list` prints the checks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const struct {
    const char *name;
    int (*check)(void);
} checks[] = {
    {"copy_before_publish", check_copy_before_publish},
    {"every_block", check_every_block},
    {"reserved_kinds", check_reserved_kinds},
    {"callback_free", check_callback_free},
    {"sleeper_rung", check_sleeper_rung},
    {"slots_wait", check_slots_wait},
    {"swaps_wait", check_swaps_wait},
    {"regions_wait", check_regions_wait},
    {"mail_whole", check_mail_whole},
    {"mail_credits", check_mail_credits},
    {"mail_last_look", check_mail_last_look},
    {"mail_brief_last_look", check_mail_brief_last_look},
    {"mail_compared", check_mail_compared},
    {"calls_compared", check_calls_compared},
    {"counts_compared", check_counts_compared},
    {"last_look", check_last_look},
    {"failure_rings", check_failure_rings},
    {"no_reader_inside", check_no_reader_inside},
    {"no_late_writer", check_no_late_writer},
    {"no_late_spread", check_no_late_spread},
    {"sealed", check_sealed},
    {"arena_offsets", check_arena_offsets},
    {"sizes", check_sizes},
    {"exchange", check_exchange},
    {"events", check_events},
    {"operand_order", check_operand_order},
    {"constants", check_constants},
    {"settings", check_settings},
};
#define CHECKS (sizeof checks / sizeof checks[0])

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: contract NAME | --list\n");
        return 2;
    }
    setenv("ABCOMM_PVR", "off", 1); /* private buffers are staged, which is what the checks look at */
    setenv("ABCOMM_DEBUG", "NONE", 0);
    for (size_t i = 0; i < CHECKS; i++) {
        if (strcmp(argv[1], "--list") == 0)
            puts(checks[i].name);
        else if (strcmp(argv[1], checks[i].name) == 0)
            return checks[i].check();
    }
    if (strcmp(argv[1], "--list") == 0)
        return 0;
    fprintf(stderr, "contract: no check \"%s\"; contract --list shows all\n", argv[1]);
    return 2;
}
