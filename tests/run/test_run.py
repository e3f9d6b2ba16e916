#!/usr/bin/env python3
"""test_run.py - the launcher as its user sees it: output, exit codes, signals, the end of a job. Plain sh programs as ranks.

usage: test_run.py ABCOMM
"""
import os
import re
import signal
import subprocess
import sys
import time

ABCOMM = sys.argv[1]
PASSED, FAILED = [], []


def command(*arguments):
    return [ABCOMM, "run", *arguments]


def run(*arguments, stdin=None, timeout=30, **others):
    start = time.monotonic()
    done = subprocess.run(command(*arguments), input=stdin, capture_output=True, text=True, timeout=timeout, **others)
    done.seconds = time.monotonic() - start
    return done


def shell(ranks, script, *options, **others):
    return run("-n", str(ranks), *options, "--", "/bin/sh", "-c", script, **others)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test(function):
    try:
        function()
        PASSED.append(function.__name__)
    except Exception as error:  # one broken case must not hide the others
        FAILED.append(function.__name__)
        print(f"{function.__name__}: {type(error).__name__}: {error}")
    return function


@test
def environment_describes_the_job():
    done = shell(3, 'echo "$ABCOMM_RANK $ABCOMM_SIZE $ABCOMM_ADDR ${ABCOMM_LISTEN_FD:-none} $ABCOMM_KEY_FD $EXTRA ${ABCOMM_KEY_FILE:-none}"',
                 "--tag-output=yes", "--env", "EXTRA=a=b", env={**os.environ, "ABCOMM_KEY_FILE": "/nowhere", "ABCOMM_LISTEN_FD": "99"})
    assert done.returncode == 0, done
    lines = sorted(done.stdout.splitlines())
    for rank, line in enumerate(lines):
        listener = r"\d+" if rank == 0 else "none"
        assert re.fullmatch(rf"\[{rank}\] {rank} 3 127\.0\.0\.1:\d+ {listener} \d+ a=b none", line), line
    assert "99" not in lines[0].split()


@test
def key_is_shared_sealed_and_readable_again():
    done = shell(2, 'od -An -tx1 /proc/self/fd/$ABCOMM_KEY_FD; od -An -tx1 /proc/self/fd/$ABCOMM_KEY_FD; '
                    'sh -c "echo x >&$ABCOMM_KEY_FD" 2>/dev/null && echo writable', "--tag-output=no")
    keys = done.stdout.split("\n")[:-1]
    assert len(keys) == 8 and "writable" not in keys and len(set(keys)) == 2, done  # 2 ranks x 2 readings x 2 lines of 16 bytes


@test
def only_the_intended_descriptors():
    done = shell(2, "ls /proc/$$/fd; true", "--tag-output=yes")
    # 0-2, the key, rank 0's socket, and the script's own descriptor of sh if it has one (10 or above)
    for rank, most in ((0, 5), (1, 4)):
        numbers = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert len([number for number in numbers if number < 10]) == most, done.stdout


@test
def one_printing_rank_has_no_prefix():
    done = shell(4, '[ $ABCOMM_RANK = 2 ] && printf "one\\ntwo\\nhalf"; exit 0')
    assert done.stdout == "one\ntwo\nhalf", done


@test
def several_printing_ranks_have_prefixes():
    done = shell(2, '[ $ABCOMM_RANK = 1 ] && sleep 0.5; echo hello; [ $ABCOMM_RANK = 0 ] && sleep 1; echo again')
    lines = done.stdout.splitlines()
    assert lines[0] == "hello" and sorted(lines[1:]) == ["[0] again", "[1] again", "[1] hello"], lines


@test
def tags_always_and_never():
    assert shell(1, "echo a; echo b >&2", "--tag-output=yes").stdout == "[0] a\n"
    assert shell(1, "echo a; echo b >&2", "--tag-output=yes").stderr == "[0] b\n"
    assert shell(2, "echo a", "--tag-output=no").stdout == "a\na\n"


@test
def lines_stay_whole():
    done = shell(8, 'for i in 1 2 3 4 5 6 7 8 9; do printf "abc"; printf "def"; printf "ghi\\n"; done', "--tag-output=yes")
    lines = done.stdout.splitlines()
    assert len(lines) == 72 and all(re.fullmatch(r"\[[0-7]\] abcdefghi", line) for line in lines), done.stdout


@test
def much_output_and_long_lines():
    done = shell(2, 'head -c 300000 /dev/zero | tr "\\0" "x"; echo; seq 20000', "--tag-output=yes")
    assert done.returncode == 0
    numbers = [line for line in done.stdout.splitlines() if re.fullmatch(r"\[[01]\] \d+", line)]
    assert len(numbers) == 40000 and done.stdout.count("x") == 600000


@test
def reader_that_leaves():
    process = subprocess.Popen(command("-n", "2", "--", "/bin/sh", "-c", "yes"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process.stdout.read(1000)
    process.stdout.close()
    assert process.wait(timeout=20) == 128 + signal.SIGPIPE


@test
def standard_input_is_rank_zeros():
    done = shell(2, 'wc -c', "--tag-output=yes", stdin="12345")
    assert sorted(done.stdout.split("\n")) == ["", "[0] 5", "[1] 0"], done.stdout


@test
def exit_codes():
    assert shell(2, "exit 0").returncode == 0
    assert shell(2, "[ $ABCOMM_RANK = 1 ] && exit 7; exit 0").returncode == 7
    done = shell(3, '[ $ABCOMM_RANK = 2 ] && kill -9 $$; exit 0')
    assert done.returncode == 137, done
    assert re.search(r"abcomm run: rank 2 \(pid \d+\) was killed by signal 9 \(Killed\)", done.stderr), done.stderr
    done = shell(3, '[ $ABCOMM_RANK = 0 ] && exit 3; sleep 0.3; exit 4')
    assert done.returncode == 3, done
    assert "rank 0" in done.stderr and "exited with code 3" in done.stderr and "2 more ranks failed" in done.stderr, done.stderr


@test
def early_success_waits_for_the_others():
    done = shell(2, '[ $ABCOMM_RANK = 1 ] && { sleep 0.5; echo late; }; exit 0')
    assert done.returncode == 0 and done.stdout == "late\n", done


@test
def grace_then_term():
    done = shell(3, '[ $ABCOMM_RANK = 1 ] && exit 5; exec sleep 60', "--grace=0.3")
    assert done.returncode == 5 and 0.3 <= done.seconds < 2.2, done
    assert "SIGTERM" in done.stderr and "SIGKILL" not in done.stderr, done.stderr


@test
def grace_lets_the_others_report():
    done = shell(2, '[ $ABCOMM_RANK = 1 ] && exit 5; sleep 0.5; echo reported', "--grace=5")
    assert done.returncode == 5 and "reported" in done.stdout and "SIGTERM" not in done.stderr, done


@test
def term_then_kill():
    done = shell(2, '[ $ABCOMM_RANK = 1 ] && exit 5; trap "" TERM; while :; do sleep 0.1; done', "--grace=0.1")
    assert done.returncode == 5 and 2 <= done.seconds < 5 and "SIGKILL" in done.stderr, done


@test
def keep_going():
    done = shell(3, '[ $ABCOMM_RANK = 1 ] && exit 5; sleep 0.6; echo done', "--keep-going", "--grace=0.1")
    assert done.returncode == 5 and done.stdout.count("done") == 2 and "SIGTERM" not in done.stderr, done


@test
def timeout_ends_the_job():
    done = shell(2, "exec sleep 60", "--timeout=0.3")
    assert done.returncode == 124 and done.seconds < 3 and "not ended within 0.3 s" in done.stderr, done


STARTED = []


def start(ranks, script, *options, **others):
    STARTED.append(subprocess.Popen(command("-n", str(ranks), *options, "--", "/bin/sh", "-c", script), stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, **others))
    return STARTED[-1]


@test
def signals_are_forwarded():
    for name in ("INT", "TERM", "HUP", "USR1", "USR2"):
        process = start(2, f'trap "echo got {name}; exit 0" {name}; echo ready; while :; do sleep 0.05; done')
        ready = [process.stdout.readline(), process.stdout.readline()]
        assert all("ready" in line for line in ready), ready
        process.send_signal(getattr(signal, "SIG" + name))
        out, _ = process.communicate(timeout=10)
        assert out.count(f"got {name}") == 2 and process.returncode == 0, (name, out, process.returncode)


@test
def interrupt_gives_its_exit_code():
    process = start(2, "echo ready; exec sleep 60")
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130, process.returncode


@test
def second_interrupt_ends_a_stubborn_job():
    process = start(2, 'trap "" INT; trap "exit 9" TERM; echo ready; while :; do sleep 0.05; done')
    process.stdout.readline()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 9, process.returncode


@test
def stop_and_continue():
    # A group of its own in our session, as a shell makes it; a group that nobody can continue cannot be stopped.
    process = start(2, "echo $$; exec sleep 1", preexec_fn=os.setpgrp)
    pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]

    def state(pid):
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0]

    time.sleep(0.2)
    process.send_signal(signal.SIGTSTP)
    assert wait_until(lambda: state(process.pid) == "T" and all(state(pid) == "T" for pid in pids)), "not stopped"
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=10)
    assert process.returncode == 0, process.returncode


@test
def stop_is_ignored_where_nobody_could_continue():
    process = start(2, "echo $$; exec sleep 1", start_new_session=True)
    process.stdout.readline()
    process.send_signal(signal.SIGTSTP)
    process.communicate(timeout=10)
    assert process.returncode == 0, process.returncode


@test
def killed_launcher_leaves_nobody():
    process = start(4, "echo $$; exec sleep 60")
    pids = [int(process.stdout.readline().split()[-1]) for _ in range(4)]
    assert all(alive(pid) for pid in pids)
    process.kill()
    process.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 5), "ranks have outlived their launcher"
    process.communicate()


@test
def program_that_cannot_run():
    done = run("-n", "3", "/no/such/program")
    assert done.returncode == 127 and "cannot execute '/no/such/program': No such file" in done.stderr, done
    done = run("-n", "1", "/etc/passwd")
    assert done.returncode == 127 and "Permission denied" in done.stderr, done


@test
def wrong_use():
    for arguments, part in ((["true"], "-n N"), (["-n", "0", "true"], "1 to 1024"), (["-n", "1025", "true"], "1 to 1024"),
                            (["-n", "x", "true"], "-n x"), (["-n", "2"], "no program"), (["-n", "2", "--grace=-1", "true"], "--grace"),
                            (["-n", "2", "--grace=nan", "true"], "--grace"), (["-n", "2", "--timeout=0", "true"], "--timeout"),
                            (["-n", "2", "--tag-output=maybe", "true"], "auto, yes or no"), (["-n", "2", "--env", "X", "true"], "NAME=VALUE"),
                            (["-n", "2", "--frob", "true"], "unknown")):
        done = run(*arguments)
        assert done.returncode == 2 and part in done.stderr, (arguments, done)
    done = run("--help")
    assert done.returncode == 0 and "--keep-going" in done.stdout


@test
def many_ranks():
    # A soft limit of 256 is too low for 300 ranks; the launcher raises it, and gives each rank the old one back.
    done = subprocess.run(["/bin/sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *command("-n", "300", "--", "/bin/sh", "-c", "ulimit -n")],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:]
    assert sorted({line.split()[-1] for line in done.stdout.splitlines()}) == ["256"] and len(done.stdout.splitlines()) == 300


@test
def few_file_descriptors():
    done = subprocess.run(["/bin/sh", "-c", 'ulimit -n 100; exec "$@"', "sh", *command("-n", "64", "--", "true")],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "ulimit -n" in done.stderr, done


for left in STARTED:
    if left.poll() is None:
        left.kill()
print(f"{len(PASSED)} passed, {len(FAILED)} failed, 0 skipped")
sys.exit(1 if FAILED else 0)
