#!/usr/bin/env python3
"""test_many.py - many ranks on few CPUs: every result right, nobody left behind, plans proved in seconds.

  test_many.py ABCOMM CROWD

ABC_TEST_FULL=1 adds 256 and 512 ranks. Prints one line a job, then "N passed, N failed, N skipped".
"""
import os
import resource
import subprocess
import sys
import time

ABCOMM, CROWD = sys.argv[1:3]
FULL = os.environ.get("ABC_TEST_FULL") == "1"
ALGORITHMS = {"allreduce": ["oneshot", "twoshot", "ring", "recdbl"], "broadcast": ["oneshot", "twoshot", "binomial", "chain"]}
NOBODY = 65534
passed = failed = skipped = 0


def report(name, problem, seconds):
    global passed, failed
    print(f"{'FAIL' if problem else 'ok'}  {name} ({seconds:.1f} s){': ' + problem if problem else ''}", flush=True)
    failed, passed = failed + bool(problem), passed + (not problem)


def job(name, *words, limit, says=False, **options):
    start = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit + 15, **options)
        problem = "" if done.returncode == 0 else f"exit code {done.returncode}: {(done.stderr + done.stdout)[:400]}"
        name += f": {done.stdout.strip()}" if says and not problem else ""
    except subprocess.TimeoutExpired:
        problem = f"did not end within {limit + 15} s"
    report(name, problem, time.monotonic() - start)


def crowd(ranks, values, limit=60, **options):
    job(f"{ranks} ranks, to {values} values", ABCOMM, "run", "-n", str(ranks), f"--timeout={limit}", "--tag-output=no", "--", CROWD,
        str(values), limit=limit, says=True, **options)


def few_files():
    """What the kernel lets a plain user have on its way between processes is bounded by the limit of open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def reachable_by_others(path):
    while path != "/":
        if not os.stat(path).st_mode & 0o005:
            return False
        path = os.path.dirname(path)
    return True


crowd(16, 300000)
crowd(64, 300000)
crowd(128, 20000)
if FULL:
    crowd(128, 1500000, limit=120)
    crowd(256, 300000, limit=200)
    crowd(512, 64, limit=200)

if os.getuid() == 0 and reachable_by_others(os.path.abspath(CROWD)) and reachable_by_others(os.path.abspath(ABCOMM)):
    crowd(128, 64, preexec_fn=few_files)
elif os.getuid() != 0:
    crowd(128, 64, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)))
else:
    skipped += 1
    print("skip  128 ranks as a plain user: the programs lie in a folder that others may not enter")

# More rows than files may be open, and no pipes: the launcher must still see its ranks end.
job("300 ranks, 128 open files, no pipes", ABCOMM, "run", "-n", "300", "--timeout=30", "--tag-output=no", "--", "true", limit=30,
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)))

for collective, names in ALGORITHMS.items():
    for algorithm in names:
        job(f"plan of {collective} by {algorithm}, 128 ranks", ABCOMM, "plan", collective, "--algo", algorithm, "-n", "128", "--rank",
            "0", "--check", limit=15)

print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0)
