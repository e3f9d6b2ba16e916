#!/bin/sh
# `abcomm plan`: what it prints goes back in, wrong plans and wrong use end with the right exit code and words.
abcomm=$1
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
bad=0

# expect CODE WORDS ARGUMENTS...: run `abcomm plan ARGUMENTS`, compare the exit code, look for the words in all it says.
expect() {
    code=$1 words=$2
    shift 2
    "$abcomm" plan "$@" >"$dir/out" 2>&1
    got=$?
    if [ "$got" -ne "$code" ] || ! grep -q -e "$words" "$dir/out"; then
        echo "abcomm plan $*: exit code $got instead of $code, or no '$words' in:"
        cat "$dir/out"
        bad=1
    fi
}

expect 0 'checked ok' allreduce --algo twoshot --ranks 8
expect 0 '2 reading steps, 14 blocks of 1/8' allreduce --algo twoshot --ranks 8 --check
expect 0 '6 reading steps' allreduce --algo chain
expect 0 'us per MiB' allreduce --algo ring --price 1e6
expect 0 'recdbl' allreduce --ranks 5
expect 0 'operands in rank order' --list
expect 0 '^rank 2: ' broadcast --algo binomial --ranks 6 --root 4 --rank 2
expect 0 'usage' --help
expect 2 'give a collective' --ranks 3
expect 2 'no collective' allredcue
expect 2 'no algorithm' allreduce --algo fast
expect 2 'does not do' barrier --algo ring
expect 2 'must be below' broadcast --algo chain --ranks 3 --root 3
expect 2 'whole number' allreduce --ranks 1e9
expect 2 'unknown option' allreduce --rnaks 4
expect 2 'needs a value' allreduce --ranks
expect 2 'must be below' allreduce --algo ring --rank 7
expect 1 'cannot read' --file "$dir/none"

for coll in allreduce reduce_scatter allgather broadcast barrier reduce gather scatter alltoall scan exscan; do
    "$abcomm" plan $coll --algo oneshot --ranks 3 --json >"$dir/plan.json" || bad=1
    "$abcomm" plan --file "$dir/plan.json" --json >"$dir/again.json" || bad=1
    cmp "$dir/plan.json" "$dir/again.json" || bad=1
    expect 0 'checked ok' --file "$dir/plan.json" --check
done

# A plan that reads too early is well formed, but wrong.
"$abcomm" plan allreduce --algo twoshot --ranks 2 --json | sed 's/"peers":\[\[1,1,1\]\]/"peers":[[1,0,1]]/' >"$dir/early.json"
expect 1 'wrong plan: rank 0 step 3' --file "$dir/early.json" --check
echo '{"abcomm_plan":1,"name":"x","collective":"allreduce","ranks":2}' >"$dir/short.json"
expect 1 'root must be an integer' --file "$dir/short.json"
exit $bad
