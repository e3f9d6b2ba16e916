/* usage.c - memory, descriptors, threads and segments of this process, from /proc. See usage.h. */
#include "usage.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static int entries(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    int count = 0;
    for (struct dirent *e; (e = readdir(dir));)
        count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

int usage_read(struct usage *u)
{
    memset(u, 0, sizeof *u);
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    if (!f)
        return -1;
    char line[256];
    double kib;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "Pss: %lf", &kib) == 1)
            u->pss_kib = kib;
        else if (sscanf(line, "Pss_Anon: %lf", &kib) == 1 || sscanf(line, "Pss_Shmem: %lf", &kib) == 1)
            u->touched_kib += kib;
    }
    fclose(f);
    u->descriptors = entries("/proc/self/fd") - 1; /* without the one that reads them */
    u->threads = entries("/proc/self/task");
    u->segments = entries("/dev/shm");
    return u->pss_kib > 0 ? 0 : -1;
}
