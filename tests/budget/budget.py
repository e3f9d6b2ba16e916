#!/usr/bin/env python3
"""budget.py OPS [--update] [--only TEXT] [--budget FILE] - instructions an operation against the committed budget.

Runs OPS (ops.c) under callgrind and compares each case with budget.csv. Counting is exact: runs of one build agree to the last
instruction, so a change of a few per cent is a change of the code. Two counts a case: `control`, the engine's own instructions, and
`moving`, those of kernels and copies, which would hide it in long operations. More than the slack above the budget fails and names
the functions that grew. More than twice that below fails too: a gain that is not written down can be lost again unseen.
--update writes the counts of today as the budget; `./dev budget --update` builds first. Exit code 77: skipped, with the reason.
"""
import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ["collective", "bytes", "mode", "control", "moving", "slack_percent", "functions"]
SLACK = 3  # per cent
LEAST = 20  # instructions that are no matter in any case
LIMIT = 120  # seconds
SHOWN = 6  # functions named for one case
SKIP = 77
MOVES = re.compile(r"^((generic|scalar)_|_*mem(cpy|move|set|pcpy))")
FRAME = ("measured", "peers_turn", "__wrap_abci_shm_wait")  # the test's own
# The same instructions everywhere: one family of kernels, one memcpy, nothing measured, no settings of the caller. And no spinning:
# the peer, in the same thread, comes only when the wait is over.
ENVIRONMENT = {
    "ABCOMM_SIMD": "generic", "ABCOMM_STORES": "plain", "ABCOMM_PVR": "off", "ABCOMM_SPIN": "0",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX512F,-AVX512VL,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load"
                      ":glibc.cpu.x86_non_temporal_threshold=0x4000000",
}


def skip(why):
    print(f"skip: {why}")
    sys.exit(SKIP)


def read_profile(path):
    """{function: instructions} of one dump, each function's own instructions without those of what it calls."""
    names, own, here, callee = {}, {}, None, False
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("fn="):
                number, _, name = line[3:].strip().partition(" ")
                if name:
                    names[number] = name
                here = names[number]
            elif line.startswith("cfn="):
                number, _, name = line[4:].strip().partition(" ")
                if name:
                    names[number] = name
            elif line.startswith("calls="):
                callee = True
            elif line[:1] in "+-*0123456789" and here is not None:
                if not callee:
                    own[here] = own.get(here, 0) + int(line.split()[1])
                callee = False
    return {re.sub(r"(\.(constprop|isra|part|cold)(\.\d+)?)+|'\d+$|@.*", "", name): count
            for name, count in own.items() if name not in FRAME}


def asked_for_compiler(ops):
    """"gcc 12"; a build that is not fit for counting ends this as skipped."""
    said = subprocess.run([ops, "no such case"], stdout=subprocess.PIPE, text=True, check=False)
    if said.returncode == SKIP:
        skip(said.stdout.strip().removeprefix("skip: "))
    if said.returncode != 0 or not said.stdout.startswith("compiler "):
        sys.exit(f"budget: {ops} ended with {said.returncode}")
    return said.stdout.splitlines()[0].removeprefix("compiler ")


def count(ops, only):
    """{case: (control, moving, {function: instructions})}, for one operation."""
    foreign = ("ABCOMM_", "GLIBC_TUNABLES", "MALLOC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory(prefix="abcomm-budget-") as place:
        out = os.path.join(place, "counts")
        environment["HOME"] = environment["XDG_CONFIG_HOME"] = place
        command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=" + out, "--toggle-collect=measured",
                   "--toggle-collect=peers_turn", "--dump-after=counted", ops] + ([only] if only else [])
        run = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True, timeout=LIMIT, check=False)
        lines = run.stdout.splitlines()
        if "Valgrind: I can't recover" in run.stderr:
            skip("valgrind cannot read what this compiler writes: " + run.stderr.strip().splitlines()[-3].strip("= "))
        if run.returncode != 0:
            print(run.stdout + run.stderr[-4000:])
            sys.exit(f"budget: {ops} ended with {run.returncode} under valgrind")
        cases, dump = {}, 0
        for line in lines:
            words = line.split()
            if words[0] not in ("warm", "case"):
                continue
            dump += 1
            if words[0] == "case":
                operations = int(words[4])
                own = {name: round(n / operations) for name, n in read_profile(f"{out}.{dump}").items()}
                moving = sum(n for name, n in own.items() if MOVES.match(name))
                cases[(words[1], int(words[2]), words[3])] = (sum(own.values()) - moving, moving, own)
    if not cases:
        sys.exit(f"budget: no case was counted (--only {only})")
    return cases


def unpack(text):
    return {name: int(n) for name, _, n in (part.rpartition(" ") for part in text.split("; ") if part)}


def pack(own):
    """Functions from the largest down; those below ten instructions are left out."""
    return "; ".join(f"{name} {n}" for name, n in sorted(own.items(), key=lambda item: (-item[1], item[0])) if n >= 10)


def read_budget(path):
    """(compiler, {case: row})"""
    with open(path, encoding="utf-8", newline="") as file:
        first = file.readline()
        rows = list(csv.DictReader(file))
    found = re.search(r"compiler (\w+ \d+)", first)
    if not found or any(set(row) != set(COLUMNS) for row in rows):
        sys.exit(f"budget: {path} is not a budget; ./dev budget --update writes it")
    return found.group(1), {(row["collective"], int(row["bytes"]), row["mode"]): row for row in rows}


def write_budget(path, compiler, cases, before):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(f"# Instructions an operation, compiler {compiler}; written by ./dev budget --update\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for case, (control, moving, own) in cases.items():
            slack = before[case]["slack_percent"] if case in before else SLACK
            writer.writerow([*case, control, moving, slack, pack(own)])


def changed(own, before, more):
    """The functions that have most of the difference, in words."""
    known = unpack(before)
    differences = {name: own.get(name, 0) - known.get(name, 0) for name in {*own, *known}}
    ranked = sorted(differences.items(), key=lambda item: -item[1] if more else item[1])
    shown = [(name, n) for name, n in ranked[:SHOWN] if (n >= 10 if more else n <= -10)]
    return ", ".join(f"{name} {known.get(name, 0)} -> {own.get(name, 0)}" for name, _ in shown) or "many, by little"


def compare_case(case, now, row):
    """What is wrong with one case: lines of text, none when it keeps its budget."""
    said = []
    for kind, value in (("control", now[0]), ("moving", now[1])):
        budget = int(row[kind])
        slack = max(LEAST, budget * float(row["slack_percent"]) / 100)
        head = f"{case[0]} of {case[1]} bytes, {case[2]}, {kind}: {value} instructions, the budget is {budget}"
        if value > budget + slack:
            said.append(f"{head} and {row['slack_percent']} %; grew: {changed(now[2], row['functions'], True)}")
        elif value < budget - 2 * slack:
            said.append(f"{head}: lower the budget; shrank: {changed(now[2], row['functions'], False)}")
    return said


def compare(cases, budget, whole):
    passed = failed = 0
    for case, now in cases.items():
        said = compare_case(case, now, budget[case]) if case in budget else [f"{' '.join(map(str, case))}: not in the budget"]
        failed, passed = failed + bool(said), passed + (not said)
        for line in said:
            print(f"FAIL  {line}")
    for case in budget if whole else ():
        if case not in cases:
            print(f"FAIL  {' '.join(map(str, case))}: in the budget, but not counted any more")
            failed += 1
    if failed:
        print("If the change is worth it, `./dev budget --update` writes today's counts; say in the commit what they buy.")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed


def main():
    parser = argparse.ArgumentParser(prog="./dev budget", description="Instructions an operation against tests/budget/budget.csv.")
    parser.add_argument("ops", help=argparse.SUPPRESS)
    parser.add_argument("--update", action="store_true", help="write the counts of today as the budget")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose name has the text, e.g. \"allreduce 8 \"")
    parser.add_argument("--budget", default=os.path.join(HERE, "budget.csv"), metavar="FILE", help="another budget")
    parser.add_argument("--show", action="store_true", help="print the counts and the functions of each case, compare nothing")
    options = parser.parse_args()
    compiler = asked_for_compiler(options.ops)
    known, budget = read_budget(options.budget) if os.path.exists(options.budget) else (compiler, {})
    if known != compiler and not (options.update or options.show):
        skip(f"the budget was counted with {known}, this build is by {compiler}, which makes other instructions")
    if not shutil.which("valgrind"):
        skip("valgrind is not installed; ./dev setup test installs it")
    cases = count(options.ops, options.only)
    if options.show:
        for case, (control, moving, own) in cases.items():
            print(*case, f"control {control} moving {moving}:", pack(own))
        return 0
    if options.update:
        if options.only:
            sys.exit("budget: --update counts every case; leave --only out")
        write_budget(options.budget, compiler, cases, budget)
        print(f"{os.path.relpath(options.budget)} written, {len(cases)} cases")
        return 0
    return 1 if compare(cases, budget, not options.only) else 0


if __name__ == "__main__":
    sys.exit(main())
