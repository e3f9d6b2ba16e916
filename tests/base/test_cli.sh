#!/bin/sh
# test_cli.sh ABCOMM - the program's own manners: help, version, unknown words, exit codes, env and info as text and JSON.
set -u
abcomm=$1
failed=0
for name in $(env | sed -n 's/^\(ABCOMM_[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done

# expect CODE PATTERN COMMAND...: exit code, and a basic regular expression in stdout or stderr.
expect() {
    code=$1 pattern=$2
    shift 2
    text=$("$@" 2>&1 </dev/null)
    got=$?
    if [ "$got" -ne "$code" ]; then
        echo "exit code $got, not $code: $*"
        failed=1
    elif ! printf '%s\n' "$text" | grep -q -e "$pattern"; then
        printf 'no "%s" in the output of: %s\n%s\n' "$pattern" "$*" "$text"
        failed=1
    fi
}

expect 2 '^usage: abcomm COMMAND' "$abcomm"
expect 0 '^usage: abcomm COMMAND' "$abcomm" --help
expect 0 '^  env ' "$abcomm" help
expect 0 '^abcomm [0-9]*\.[0-9]*\.[0-9]*$' "$abcomm" --version
expect 2 "unknown command 'inof'; did you mean info?" "$abcomm" inof
expect 2 "unknown command 'frobnicate'; abcomm --help lists all" "$abcomm" frobnicate
expect 2 "unknown command '--jsn'" "$abcomm" --jsn

expect 0 '^usage: abcomm env' "$abcomm" env --help
expect 0 '^ABCOMM_TIMEOUT  *300  *default  *local  .*\[s\]$' "$abcomm" env
expect 0 '^ABCOMM_CHUNK  *1M  *environment  *job ' env ABCOMM_CHUNK=1M "$abcomm" env
expect 0 '"name": "ABCOMM_RANK"' "$abcomm" env --json
expect 2 "unknown flag '--jsn'; see abcomm env --help" "$abcomm" env --jsn
expect 2 "unexpected argument 'x'" "$abcomm" env x
expect 1 "ABCOMM_PVR='of' is not allowed; it must be one of auto|on|off" env ABCOMM_PVR=of "$abcomm" env
expect 1 'cannot write the output' sh -c '"$0" env >/dev/full' "$abcomm"
expect 1 'cannot write the output' sh -c '"$0" --help >/dev/full' "$abcomm"
expect 1 'cannot write the output' sh -c '"$0" --version >/dev/full' "$abcomm"
expect 1 'cannot write the ranks. output: No space' sh -c '"$0" run -n 2 -- echo x >/dev/full' "$abcomm"

expect 0 '^usage: abcomm info' "$abcomm" info --help
expect 0 '^types  *f32 f64 bf16 i32 f16 .*' "$abcomm" info
expect 0 '"paths": {' "$abcomm" info --json
expect 2 "unknown flag '-q'" "$abcomm" info -q
expect 2 '^usage: abcomm docs' "$abcomm" docs nothing

if command -v python3 >/dev/null; then
    for page in env info; do
        "$abcomm" $page --json | python3 -m json.tool >/dev/null || { echo "abcomm $page --json is not JSON"; failed=1; }
    done
fi
exit $failed
