/*
 * analyzer.h - included before everything else when clang-tidy reads the library (./dev lint). Tells its analyzer what it cannot
 * see across files: abci_error returns the status that it was given, and that is never success. Not part of any build.
 */
#ifndef ABCI_ANALYZER_H
#define ABCI_ANALYZER_H

#include "base/base.h"

static inline int analyzer_failure(int status)
{
    if (status >= 0)
        __builtin_unreachable();
    return status;
}

#define abci_error(status, ...) (abci_error((status), __VA_ARGS__), analyzer_failure(status))
#define abci_error_errno(status, ...) (abci_error_errno((status), __VA_ARGS__), analyzer_failure(status))

#endif
