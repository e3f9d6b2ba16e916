/*
 * driver.c - main() that feeds every regular file of the given folders (or single files) to a fuzz target once, so that the corpus
 * runs as an ordinary test with any compiler. Fails when there is nothing to feed. Cost: one pass over the corpus.
 */
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX (1u << 20) /* larger inputs are cut: a target sees what libFuzzer would give it */

static int feed_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return -1;
    }
    uint8_t *whole = malloc(INPUT_MAX);
    size_t size = whole ? fread(whole, 1, INPUT_MAX, file) : 0;
    fclose(file);
    /* A copy of exact size lets a memory checker see a read past the end. */
    uint8_t *data = malloc(size ? size : 1);
    if (!whole || !data) {
        fprintf(stderr, "%s: out of memory\n", path);
        free(whole);
        free(data);
        return -1;
    }
    memcpy(data, whole, size);
    free(whole);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 1;
}

/* Returns the number of inputs fed, or -1. Subfolders and other kinds of files are passed over. */
static int feed(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        perror(path);
        return -1;
    }
    if (S_ISREG(st.st_mode))
        return feed_file(path);
    DIR *folder = opendir(path);
    if (!folder) {
        perror(path);
        return -1;
    }
    int fed = 0;
    for (struct dirent *entry; fed >= 0 && (entry = readdir(folder));) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (stat(name, &st) != 0 || !S_ISREG(st.st_mode))
            continue;
        int one = feed_file(name);
        fed = one < 0 ? -1 : fed + one;
    }
    closedir(folder);
    return fed;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int fed = feed(argv[i]);
        if (fed < 0)
            return 1;
        total += fed;
    }
    printf("%d inputs\n", total);
    return total > 0 ? 0 : 1;
}
