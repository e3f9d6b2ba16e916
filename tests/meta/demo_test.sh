#!/bin/sh
# demo_test.sh - runs the demo: full length on 4 ranks, where the accuracy counts, then short on 1 to 4; and bad input. The demo
# itself fails when weights or accuracy differ from those of one process. Usage: demo_test.sh ABCOMM DEMO [short]
# With "short", for slow builds, the long run is left out.
set -u
passed=0 failed=0

# expect NAME CODE TEXT COMMAND...: the command ends with CODE and prints a line that matches TEXT.
expect() {
    name=$1 wanted=$2 text=$3
    shift 3
    out=$("$@" 2>&1 </dev/null)
    code=$?
    if [ "$code" -eq "$wanted" ] && printf '%s\n' "$out" | grep -q -- "$text"; then
        passed=$((passed + 1))
    else
        printf 'FAIL  %s: wanted exit %s and "%s", got exit %s and:\n%s\n' "$name" "$wanted" "$text" "$code" "$out"
        failed=$((failed + 1))
    fi
}

if [ "${3:-}" != short ]; then
    expect "4 ranks reach 96 %" 0 "epoch  30 .* test set  *9[6-9]\." "$1" run -n 4 -- "$2"
fi
for ranks in 1 2 3 4; do
    expect "$ranks ranks" 0 "proof: the weights are bit for bit those of one process" "$1" run -n "$ranks" -- "$2" --epochs 2
done
expect "more ranks than a batch has images" 0 "proof:" "$1" run -n 5 -- "$2" --epochs 1 --batch 3 --hidden 16
expect "bad number" 2 "takes a number from 1 to 100000" "$2" --epochs none
expect "missing data" 1 "give the file with --data PATH" "$2" --data /nonexistent/digits.csv
expect "without a job" 1 "abcomm run -n N" "$2"

echo "$passed passed, $failed failed, 0 skipped"
test "$failed" -eq 0
