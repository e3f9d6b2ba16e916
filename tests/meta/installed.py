"""installed.py - the library as `meson install` leaves it in an empty place, for the tests that use it as a stranger would:
packaging.py and build_on.py. No test of its own."""
import glob
import os
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Fault(Exception):
    """What a check found; its text is for the reader of the test's output."""


class Skip(Exception):
    """Why a check cannot run here."""


def run(command, fails=False, **more):
    """Output of a command that must succeed, or must fail."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                          errors="replace", check=False, **more)
    if (done.returncode != 0) != fails:
        raise Fault(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def compilers(*names):
    found = [name for name in names if shutil.which(name)]
    if not found:
        raise Skip(f"none of {', '.join(names)} is installed")
    return found


class Installed:
    """The library installed under a destination directory."""

    def __init__(self, build, place):
        run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", place])
        self.place = place
        self.pc_dir = os.path.dirname(self.one("abcomm.pc"))
        self.library = self.one("libabcomm.so")
        self.environment = dict(os.environ, PKG_CONFIG_PATH=self.pc_dir, PKG_CONFIG_SYSROOT_DIR=place,
                                LD_LIBRARY_PATH=os.path.dirname(self.library))

    def one(self, name):
        found = glob.glob(os.path.join(glob.escape(self.place), "**", name), recursive=True)
        if len(found) != 1:
            raise Fault(f"{name} was installed {len(found)} times")
        return found[0]


class Report:
    """Runs checks, says what came of each and at the end the total."""

    def __init__(self):
        self.totals = {"passed": 0, "failed": 0, "skipped": 0}
        self.installed = None

    def check(self, name, work):
        try:
            work()
            word, result = "ok", "passed"
        except Skip as reason:
            word, result = f"skip: {name}: {reason};", "skipped"
        except (Fault, subprocess.TimeoutExpired) as fault:
            print(fault)
            word, result = "FAIL", "failed"
        print(f"{word}    {name}", flush=True)
        self.totals[result] += 1

    def install(self, build, place):
        self.installed = Installed(build, place)

    def need(self):
        if self.installed is None:
            raise Fault("the installation failed")
        return self.installed

    def end(self):
        print(f"{self.totals['passed']} passed, {self.totals['failed']} failed, {self.totals['skipped']} skipped")
        return 1 if self.totals["failed"] else 0
