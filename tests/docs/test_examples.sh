#!/bin/sh
# test_examples.sh - runs the small programs of examples/ on some numbers of ranks; each checks its own results.
# Usage: test_examples.sh ABCOMM EXAMPLES-FOLDER
set -u
passed=0 failed=0

check() { # WORDS COMMAND...
    words=$1
    shift
    if out=$("$@" 2>&1 </dev/null) && printf '%s\n' "$out" | grep -q "$words"; then
        passed=$((passed + 1))
    else
        printf 'FAIL  %s\n%s\n' "$*" "$out"
        failed=$((failed + 1))
    fi
}

for ranks in 1 2 4; do
    check "the sum is $((ranks * (ranks + 1) / 2))$" "$2/threads" "$ranks"
    check "on $ranks ranks: 0 wrong values" "$1" run -n "$ranks" -- "$2/persistent"
    check "all $ranks functions in a row" "$1" run -n "$ranks" -- "$2/user_op"
done
echo "$passed passed, $failed failed, 0 skipped"
test "$failed" -eq 0
