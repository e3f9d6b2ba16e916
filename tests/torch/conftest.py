"""conftest.py - what the tests of the PyTorch package share: jobs of real processes, under torchrun or alone."""
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(command, timeout=120, **environment):
    """(exit code, all that was printed); what hangs is killed with all its processes."""
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **environment})
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        return -1, f"{said}\nnot over after {timeout} seconds"
    return process.returncode, said


def torchrun(ranks, *program, restarts=0, timeout=120, **environment):
    """Run a Python program as the ranks of a job."""
    return run([sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                f"--max-restarts={restarts}", *program], timeout, **environment)


def python(*arguments, timeout=120, **environment):
    """Run Python alone."""
    return run([sys.executable, *arguments], timeout, **environment)


def fine(code, said):
    """True if a job ended well and nothing complained behind its back."""
    return code == 0 and not any(word in said for word in ("Traceback", "Exception ignored", "terminate called", "Fatal"))
