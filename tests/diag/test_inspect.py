#!/usr/bin/env python3
"""test_inspect.py ABCOMM RANK - `abcomm inspect` on ranks that hang, are stopped or have died, and its errors; the line that says
who is slow. Starts RANK (rank.c) through `abcomm run` and asks from outside.
"""
import json
import os
import re
import signal
import subprocess
import sys
import time

ABCOMM, RANK = sys.argv[1:3]
LIMIT = 20


def inspect(pid, *flags):
    run = subprocess.run([ABCOMM, "inspect", *flags, "--", str(pid)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, timeout=LIMIT, check=False)
    return run.returncode, run.stdout, run.stderr


def parsed(pid, *flags):
    code, out, err = inspect(pid, "--json", *flags)
    assert code == 0, err
    ends = json.loads(out)["communicators"]
    assert len(ends) == 1, out
    return ends[0]


class Job:
    """ranks of rank.c; pid[r] once all have said that they are ready."""

    def __init__(self, ranks, *arguments, **environment):
        command = [ABCOMM, "run", "-n", str(ranks), "--tag-output=no", "--keep-going", "--", RANK, *map(str, arguments)]
        self.launcher = subprocess.Popen(command, env=dict(os.environ, **environment), stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid = {}
        while len(self.pid) < ranks:
            line = self.launcher.stdout.readline()
            assert line, "the job ended early: " + self.launcher.stderr.read()
            match = re.search(r"ready (\d+) (\d+)", line)
            if match:
                self.pid[int(match.group(1))] = int(match.group(2))

    def end(self, send=None):
        """Wait for the end, or bring it about; what was said on stderr."""
        if send:
            for pid in self.pid.values():
                try:
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, send)
                except ProcessLookupError:
                    pass
        return self.launcher.communicate(timeout=LIMIT)[1]


def eventually(condition, what):
    last = None
    for _ in range(100):
        last = condition()
        if last[0]:
            return last[1]
        time.sleep(0.05)
    raise AssertionError(f"{what}: {last[1]}")


def test_missing_rank():
    """Rank 1 waits for rank 2, which has not called; and rank 2 hears that it is waited for."""
    job = Job(3, 16, 2, 30)
    try:
        def found():
            end = parsed(job.pid[1], "--events", "4")
            text = end["diagnosis"]
            return "rank 2 (pid" in text and any(p["awaited"] for p in end["peers"] if p["rank"] == 2), end
        end = eventually(found, "diagnosis of rank 1")
        text = end["diagnosis"]
        assert re.search(r"rank 1 has entered allreduce\(count 14, f32, max\) #17 [\d.]+ m?s ago", text), text
        assert f"rank 2 (pid {job.pid[2]}) has not: its last operation is #16, over" in text, text
        assert "rank 0" not in text, text
        assert end["rank"] == 1 and end["size"] == 3 and end["started"] == 17, end
        assert end["headers"][0]["call"] == "allreduce(count 14, f32, max)", end["headers"][0]
        assert [e["kind"] for e in end["events"]] == ["end", "start", "end", "start"], end["events"]
        assert [e["sequence"] for e in end["events"]] == [15, 16, 16, 17] and end["events"][-1]["op"] == "max", end["events"]
        idle = parsed(job.pid[2])["diagnosis"]
        assert re.search(r"rank 2 is in no operation; its last, #16, was over .* ago; rank 0 \(pid \d+\) waits for it in ", idle), idle
        code, out, err = inspect(job.pid[1], "--events", "2")
        assert code == 0 and out.count("  event ") == 2 and "diagnosis rank 1 has entered" in out, out + err
        assert f"peer      rank 2, pid {job.pid[2]} (sleeping): last started #16" in out, out
        assert "it waits for: 2" in out and "header    #17 allreduce(count 14, f32, max)" in out, out
    finally:
        job.end(signal.SIGKILL)


def test_stopped():
    """Both a stopped rank and one that waits for it can be read; the diagnosis says what lets it go on."""
    job = Job(2, 3, 1, 1)
    try:
        os.kill(job.pid[1], signal.SIGSTOP)
        def found():
            text = parsed(job.pid[0])["diagnosis"]
            return "stopped" in text, text
        text = eventually(found, "diagnosis of rank 0")
        assert f"kill -CONT {job.pid[1]}" in text, text
        own = parsed(job.pid[1])
        assert own["process"] == "stopped" and own["started"] == 3, own
        assert f"this process is stopped: kill -CONT {job.pid[1]}" in own["diagnosis"], own
        os.kill(job.pid[1], signal.SIGCONT)
        assert job.end() == "", "the job goes on after SIGCONT"
        assert job.launcher.returncode == 0
    finally:
        job.end(signal.SIGKILL)


def test_dead():
    """A rank that has died can be read through its peers' open files; a failed communicator says why."""
    job = Job(3, 2, 2, 30, ABCOMM_TIMEOUT="20")
    try:
        def waits():
            text = parsed(job.pid[0])["diagnosis"]
            return "rank 2 (pid" in text and "rank 1 (pid" not in text, text
        eventually(waits, "both wait for rank 2")
        os.kill(job.pid[0], signal.SIGSTOP)  # it must not end before it is asked; rank 1 writes the record
        os.kill(job.pid[2], signal.SIGKILL)
        def found():
            end = parsed(job.pid[0])
            return end["failure"] is not None, end
        end = eventually(found, "the failure record")
        assert end["failure"]["status"] == "ABC_ERR_PEER" and end["failure"]["culprit"] == 2, end["failure"]
        assert "the communicator has ended: rank 2 (pid" in end["diagnosis"], end["diagnosis"]
        dead = [p for p in end["peers"] if p["rank"] == 2][0]
        assert dead["process"] == "gone" and dead["started"] == 2, dead
        assert dead["last_event"]["kind"] == "end" and dead["last_event"]["sequence"] == 2, dead  # its ring has outlived it
    finally:
        job.end(signal.SIGKILL)


def test_chunks():
    """A long operation is many chunks under one number."""
    job = Job(2, 1, 1, 30, 4 << 20)
    try:
        def found():
            text = parsed(job.pid[0])["diagnosis"]
            return "has not" in text, text
        text = eventually(found, "diagnosis")
        assert "allreduce(count 4194304, f32, max) #2" in text and "its last operation is #1, over" in text, text
    finally:
        job.end(signal.SIGKILL)


def test_errors():
    """Each wrong use says what to do."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    try:
        for pid, expected in ((child.pid, "has no communicator of libabcomm"), (gone.pid, "there is no process")):
            code, out, err = inspect(pid)
            assert code == 1 and expected in err and not out, (pid, code, out, err)
        for flags in ([], ["12", "13"], ["abc"], ["0"], ["-5"], ["--events", "x", "1"], ["--events"], ["--nonsense", "1"]):
            run = subprocess.run([ABCOMM, "inspect", *flags], capture_output=True, text=True, timeout=LIMIT, check=False)
            assert run.returncode == 2 and "see abcomm inspect --help" in run.stderr, (flags, run)
    finally:
        child.kill()
        child.wait()


def test_permission():
    """Another user's process."""
    if os.geteuid() != 0:
        print("SKIP permission: only root can become another user")
        return "skipped"
    job = Job(2, 1, 1, 30)
    try:
        run = subprocess.run([ABCOMM, "inspect", str(job.pid[0])], capture_output=True, text=True, timeout=LIMIT, check=False,
                             user=65534, group=65534, extra_groups=[])
        assert run.returncode == 1 and "as the user who started it, or as root" in run.stderr, run
    except PermissionError:
        print("SKIP permission: the program cannot be run by another user here")
        return "skipped"
    finally:
        job.end(signal.SIGKILL)
    return None


def test_launcher():
    """The launcher is no rank; the error names its children."""
    job = Job(2, 1, 1, 30)
    try:
        code, _, err = inspect(job.launcher.pid)
        assert code == 1 and "has no communicator" in err, err
        if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
            assert str(job.pid[0]) in err, err
    finally:
        job.end(signal.SIGKILL)


def test_slow_line():
    """After ABCOMM_SLOW seconds one line, once, by each rank that waits; and the operation still ends well."""
    job = Job(3, 1, 1, 0.8, ABCOMM_SLOW="0.2")
    said = [line for line in job.end().splitlines() if "waiting for rank" in line]
    assert job.launcher.returncode == 0, said
    assert len(said) == 2, said
    for line in said:
        assert f"WARN plan: waiting for rank 1 (pid {job.pid[1]}) in allreduce(count 14, f32, max) #2" in line, line


def main():
    totals = {"passed": 0, "failed": 0, "skipped": 0}
    for name, test in sorted((n, t) for n, t in globals().items() if n.startswith("test_")):
        try:
            outcome = test() or "passed"
        except (AssertionError, subprocess.TimeoutExpired) as why:
            print(f"FAIL  {name}: {why}")
            outcome = "failed"
        totals[outcome] += 1
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
