/*
 * child.h - run a piece of a test in a forked child with a given environment, since the settings of a process are read once. What
 * the child prints and logs comes back as text.
 */
#ifndef TEST_CHILD_H
#define TEST_CHILD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct child {
    int code;        /* exit code, or 128 + signal */
    char out[8192];  /* what body printed to its stream */
    char err[16384]; /* what it wrote to stderr */
};

static inline void child_clear_environment(void)
{
    for (char **entry = environ; *entry;) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (strncmp(name, "ABCOMM_", 7) == 0)
            unsetenv(name); /* moves the rest down */
        else
            entry++;
    }
}

static inline void child_read_back(FILE *file, char *text, size_t capacity)
{
    rewind(file);
    text[fread(text, 1, capacity - 1, file)] = 0;
    fclose(file);
}

/* environment: "NAME=value" strings up to NULL, besides which no ABCOMM_ name is set. */
static inline void child_run(char *const *environment, void (*body)(FILE *out), struct child *child)
{
    FILE *out = tmpfile(), *err = tmpfile();
    if (!out || !err)
        abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        child_clear_environment();
        for (; *environment; environment++)
            putenv(*environment);
        dup2(fileno(err), STDERR_FILENO);
        body(out);
        fflush(out);
        _exit(0);
    }
    int state = 0;
    if (pid < 0 || waitpid(pid, &state, 0) != pid)
        abort();
    child->code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    child_read_back(out, child->out, sizeof child->out);
    child_read_back(err, child->err, sizeof child->err);
}

static inline int child_count(const char *text, const char *word)
{
    int count = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        count++;
    return count;
}

#define CHILD_ENV(...) ((char *[]){__VA_ARGS__, NULL})

#endif
