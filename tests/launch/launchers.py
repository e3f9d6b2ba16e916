"""launchers.py - what the launcher tests share: running a job with a limit, judging its output, finding or installing a launcher.

Wheels go to virtual environments below BUILD/launchers; those of `./dev bench peers` are taken where they are there. A test installs
what is missing; ABC_TEST_LARGE=0 leaves out the large ones (torch, Intel MPI), which it says.
"""
import os
import re
import shutil
import subprocess
import sys
import time

BUILD, ROOT = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
HELLO = os.path.join(BUILD, "examples", "hello")
LARGE = os.environ.get("ABC_TEST_LARGE") != "0"
LIMIT = 60           # seconds for one job
INSTALL_LIMIT = 300  # seconds for one installation
PASSED, FAILED, SKIPPED = [], [], []


class Skip(Exception):
    """Why a case cannot run here."""


def clean_environment(**more):
    """This process's environment without what other launchers, or a job around the tests, left in it."""
    unwanted = re.compile(r"^(ABCOMM|OMPI|PMI|PMIX|SLURM|MPI|HYDRA|I_MPI|RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|TORCHELASTIC|HCCL)")
    env = {name: value for name, value in os.environ.items() if not unwanted.match(name)}
    # Launchers' own libraries keep memory to the end of the process: not ours to find.
    leaks = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return {**env, "MALLOC_PERTURB_": "0", "ASAN_OPTIONS": leaks, **more}


def run(command, limit=LIMIT, **env):
    """Exit code and output of a job; one that does not end is killed with all its children."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                               env=clean_environment(**env), start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        raise AssertionError(f"{' '.join(command)} did not end within {limit} s:\n{output[-3000:]}") from None
    return process.returncode, output


def expect_sums(command, ranks, limit=LIMIT, **env):
    """The hello example as `ranks` ranks: each prints the sum once, and the job ends well. Returns the output."""
    code, output = run(command, limit, **env)
    total = ranks * (ranks + 1) // 2
    said = sorted(re.findall(r"rank (\d+) of (\d+): the sum is (\d+)", output))
    wanted = sorted((str(rank), str(ranks), str(total)) for rank in range(ranks))
    if code != 0 or said != wanted:
        raise AssertionError(f"{' '.join(command)}: exit code {code}, output:\n{output[-3000:]}")
    return output


def case(name, function, *arguments):
    start = time.monotonic()
    try:
        function(*arguments)
        PASSED.append(name)
        print(f"ok    {name} ({time.monotonic() - start:.1f} s)", flush=True)
    except Skip as reason:
        SKIPPED.append(name)
        print(f"skip  {name}: {reason}", flush=True)
    except Exception as error:  # one broken case must not hide the others
        FAILED.append(name)
        print(f"FAIL  {name}: {type(error).__name__}: {error}", flush=True)


def finish():
    print(f"{len(PASSED)} passed, {len(FAILED)} failed, {len(SKIPPED)} skipped")
    sys.exit(1 if FAILED else 0 if PASSED else 77)


def wheel(name, packages, bench_name=None, large=False):
    """The virtual environment that holds the packages; installs them where that is cheap or asked for."""
    taken = os.path.join(BUILD, "bench-work", bench_name) if bench_name else None
    if taken and os.path.exists(os.path.join(taken, "complete")):
        return taken
    where = os.environ.get("ABC_TEST_" + name.upper()) or os.path.join(BUILD, "launchers", name)
    if "ABC_TEST_" + name.upper() in os.environ or os.path.exists(os.path.join(where, "complete")):
        return where
    if large and not LARGE:
        raise Skip(f"{' '.join(packages)} is large and not installed, and ABC_TEST_LARGE=0 says to leave it out; "
                   f"ABC_TEST_{name.upper()}=DIR names a virtual environment that has it")
    shutil.rmtree(where, ignore_errors=True)
    for command in ([sys.executable, "-m", "venv", where],
                    [os.path.join(where, "bin", "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", *packages]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            raise Skip(f"{' '.join(packages)} could not be installed within {INSTALL_LIMIT} s") from None
        if done.returncode != 0:
            raise Skip(f"{' '.join(packages)} cannot be installed: {done.stderr.strip()[-200:]}")
    with open(os.path.join(where, "complete"), "w") as file:
        file.write(" ".join(packages))
    return where
