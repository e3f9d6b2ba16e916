#!/bin/sh
# dev_test.sh - tests ./dev on an invented machine: a PATH that holds a few real tools and stand-ins for id and apt-get. Checks that
# nothing is installed without saying so, that without root the exact command is printed, and that bad input is refused.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
passed=0 failed=0

# A machine on which only the basic tools exist.
mkdir "$place/bin"
for tool in sh dirname cat mktemp rm printf ls tail test mkdir ln touch chmod; do
    path=$(command -v "$tool" || true)
    case $path in /*) ln -s "$path" "$place/bin/$tool" ;; esac
done

stand_in() {
    printf '#!/bin/sh\n%s\n' "$2" >"$place/bin/$1"
    chmod +x "$place/bin/$1"
}

# on_machine ARGUMENTS: ./dev there; output in $out, exit code in $code.
on_machine() {
    out=$(PATH="$place/bin" BUILDDIR="$place/build" CC=gcc "$place/bin/sh" "$root/dev" "$@" 2>&1 </dev/null)
    code=$?
}

expect() {
    if [ "$code" -eq "$2" ] && printf '%s\n' "$out" | grep -qF -- "$3"; then
        passed=$((passed + 1))
    else
        printf 'FAIL  %s: wanted exit %s and "%s", got exit %s and:\n%s\n' "$1" "$2" "$3" "$code" "$out"
        failed=$((failed + 1))
    fi
}

stand_in apt-get "echo \"\$*\" >>'$place/apt.log'"
stand_in apt-cache "exit 0"
stand_in id "echo 1000"
on_machine build
expect "without root" 1 "sudo apt-get update && sudo apt-get install -y --no-install-recommends gcc "
expect "without root, all of them" 1 "libcmocka-dev"
if [ -e "$place/apt.log" ]; then
    out=$(cat "$place/apt.log") code=0
    expect "apt-get is not called without root" 1 "never"
fi

stand_in id "echo 0"
on_machine setup bench
expect "says what it installs" 1 "dev: installing openmpi-bin libopenmpi-dev"
out=$(cat "$place/apt.log") code=0
expect "installs it" 0 "install -y --no-install-recommends openmpi-bin libopenmpi-dev"
stand_in mpirun ""
stand_in mpicc ""
stand_in strace ""
stand_in g++ ""
stand_in python3 ""
on_machine setup bench
expect "nothing missing" 0 "dev: nothing is missing for: bench"

rm "$place/apt.log"
rm "$place/bin/mpirun"
stand_in apt-cache "exit 100"
stand_in apt-get "echo \"\$*\" >>'$place/apt.log'; touch '$place/bin/mpirun'; chmod +x '$place/bin/mpirun'"
on_machine setup bench
out=$(cat "$place/apt.log")
expect "reads new lists when they are empty" 0 "update"

on_machine setup nonsense
expect "unknown set" 1 'no set "nonsense"'
on_machine nonsense
expect "unknown command" 1 'no command "nonsense"'
on_machine help
expect "help" 0 "usage: ./dev COMMAND"
rm "$place/bin/apt-get"
on_machine build
expect "without apt-get" 1 "by their Debian names: gcc"

echo "$passed passed, $failed failed, 0 skipped"
test "$failed" -eq 0
