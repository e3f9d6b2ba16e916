#!/usr/bin/env python3
"""test_odd.py ABCOMM SURROUND RANK TOGETHER - the library on machines that lack something, through real processes.

Each surrounding (see surround.c, and settings that hide instructions) must give right results, bit by bit the same, in bounded
time, and the choice must adapt: `abcomm info` and the line that rank 0 logs about its communicator say what was found.
"""
import json
import os
import re
import subprocess
import sys

ABCOMM, SURROUND, RANK, TOGETHER = sys.argv[1:5]
LIMIT = 60  # seconds for one run; none needs more than a few
SKIP = 77
YIELD = 0.2  # us: the least that giving a CPU away is taken to cost, src/comm/comm.c


class Skipped(Exception):
    pass


class Failed(Exception):
    pass


def run(command, settings=()):
    """(exit code, stdout, stderr); a run that hangs is a failure, and all of it is ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ABCOMM_")}
    environment.update(settings)
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, errors="replace", start_new_session=True)
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 15)
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
        raise Failed(f"hangs: {' '.join(command)}\n{out}{err}") from None
    if process.returncode == SKIP and out.startswith("skip: "):
        raise Skipped(out.strip().removeprefix("skip: "))
    return process.returncode, out, err


def around(words, command):
    return [SURROUND, *words, "--", *command] if words else command


def need(what, ok, text=""):
    if not ok:
        raise Failed(f"{what}\n{text}")


def info(words, settings=()):
    code, out, err = run(around(words, [ABCOMM, "info", "--json"]), settings)
    need("abcomm info fails", code == 0, err)
    return json.loads(out)


def results(words, ranks, settings=()):
    """The log of rank 0 about its communicator, after all results were right."""
    code, out, err = run(around(words, [ABCOMM, "run", "-n", str(ranks), "--", RANK]), {"ABCOMM_DEBUG": "INFO", **dict(settings)})
    need(f"{ranks} ranks", code == 0 and "right: 80 operations" in out, out + err)
    found = re.search(r"communicator of \d+ ranks.*", out + err)
    need("rank 0 tells nothing about its communicator", found, out + err)
    return found.group(0)


def hand_off(log):
    """Microseconds that the choice takes a hand-off for."""
    return float(re.search(r"hand-off ([\d.]+) us", log).group(1))


def kernels(name):
    settings = {"ABCOMM_SIMD": name}
    found = info([], settings)["kernels"]
    if name == "avx512" and found != name or name == "avx2" and found not in (name, "avx512"):
        raise Skipped(f"this CPU has no {name}")
    need(f"ABCOMM_SIMD={name} gives {found}", found == name)
    results([], 3, settings)


def no_readv():
    path = info(["no-readv"])["paths"]["process_vm_readv"]
    need("info says that process_vm_readv is usable", not path["usable"] and "permitted" in path["why"], str(path))
    for wish in ("auto", "on", "off"):
        log = results(["no-readv"], 3, {"ABCOMM_PVR": wish})
        need("it is used", "process_vm_readv not used" in log, log)


def readv_off():
    log = results([], 3, {"ABCOMM_PVR": "off"})
    need("it is used", "process_vm_readv not used" in log, log)


def one_cpu():
    found = info(["one-cpu"])
    need("info sees more than one CPU", found["cpus"] == 1 and found["cpus_affinity"] == 1, str(found))
    for ranks in (2, 4):
        log = results(["one-cpu"], ranks)
        need("a hand-off costs no yields", hand_off(log) >= ranks * YIELD, log)


def together_on_one():
    """There are CPUs for all, but the scheduler puts the ranks on one: whoever waits must give it away. About 3 us a call."""
    if info([])["cpus"] < 2:
        raise Skipped("there is only one CPU anyway")
    code, out, err = run([ABCOMM, "run", "-n", "2", "--", TOGETHER])
    found = re.search(r"([\d.]+) us a call, 2 ranks on 1 of", out)
    need("2 ranks on one CPU", code == 0 and found, out + err)
    need("a waiting rank keeps the CPU from the awaited one", float(found.group(1)) < 60, out)


def half_a_cpu():
    found = info(["quota", "0.5"])
    need("info does not see the quota", found["cpus"] == 1 and found["cpus_quota"] == 0.5, str(found))
    log = results(["quota", "0.5"], 2)
    need("a hand-off costs no yields", hand_off(log) >= 2 / 0.5 * YIELD, log)


def small_shm():
    for ranks in (2, 4):
        results(["shm", "64"], ranks)


def few_files():
    """Right, or an error that says why; from some number on always right."""
    worked = []
    for number in (4, 8, 12, 16, 20, 24, 32, 64):
        command = around(["files", str(number)], [ABCOMM, "run", "-n", "3", "--", RANK])
        code, out, err = run(command, {"ABCOMM_CONNECT_TIMEOUT": "5"})
        right = "right: 80 operations" in out
        need(f"{number} descriptors: exit code {code}", right == (code == 0), out + err)
        need(f"{number} descriptors: no word why", right or len(err.strip()) > 30, out + err)
        need(f"{number} descriptors fail, {worked[-1] if worked else 0} do not", right or not worked, out + err)
        if right:
            worked.append(number)
    need("64 descriptors are too few", 64 in worked)


CASES = [("kernels, " + name, lambda name=name: kernels(name)) for name in ("scalar", "generic", "avx2", "avx512")] + [
    ("process_vm_readv forbidden", no_readv),
    ("process_vm_readv turned off", readv_off),
    ("one CPU", one_cpu),
    ("two ranks on one of several CPUs", together_on_one),
    ("a quota of half a CPU", half_a_cpu),
    ("64 KB of /dev/shm", small_shm),
    ("few descriptors", few_files),
]


def main():
    passed = failed = skipped = 0
    for name, body in CASES:
        try:
            body()
            passed += 1
            print(f"ok    {name}", flush=True)
        except Skipped as why:
            skipped += 1
            print(f"skip  {name}: {why}", flush=True)
        except Failed as why:
            failed += 1
            print(f"FAIL  {name}: {why}", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
