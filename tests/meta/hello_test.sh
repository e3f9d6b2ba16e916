#!/bin/sh
# hello_test.sh - runs examples/hello.c on 1 to 4 ranks. Usage: hello_test.sh ABCOMM HELLO
set -u
passed=0 failed=0
for ranks in 1 2 3 4; do
    out=$("$1" run -n "$ranks" -- "$2" 2>&1 </dev/null)
    code=$?
    lines=$(printf '%s\n' "$out" | grep -c "of $ranks: the sum is $((ranks * (ranks + 1) / 2))\$")
    if [ "$code" -eq 0 ] && [ "$lines" -eq "$ranks" ]; then
        passed=$((passed + 1))
    else
        printf 'FAIL  %s ranks: exit %s and:\n%s\n' "$ranks" "$code" "$out"
        failed=$((failed + 1))
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
test "$failed" -eq 0
