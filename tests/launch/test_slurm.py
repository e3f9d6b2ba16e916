#!/usr/bin/env python3
"""test_slurm.py - srun on a real Slurm of one node: munge, slurmctld and slurmd, started in a directory of their own with a key of their
own, and stopped after. The hello example with no table, over PMI-1 and over PMIx. usage: test_slurm.py BUILD ROOT
"""
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from launchers import HELLO, Skip, case, clean_environment, expect_sums, finish, run

START_LIMIT = 20  # seconds until the node is idle
PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "sinfo": "slurm-client"}

CONFIGURATION = """\
ClusterName=abcomm{port}
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={port}
SlurmdPort={node_port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Slurm:
    """The three daemons, all in the foreground as our children."""

    def __init__(self):
        path = os.environ["PATH"] + ":/usr/sbin:/sbin"
        self.program = {name: shutil.which(name, path=path) for name in PROGRAMS}
        missing = sorted({package for name, package in PROGRAMS.items() if self.program[name] is None})
        if missing:
            raise Skip(f"not installed: {' '.join(missing)} (Debian's names)")
        self.folder = tempfile.mkdtemp(prefix="abcomm-slurm-")
        self.environment = {"SLURM_CONF": os.path.join(self.folder, "slurm.conf")}
        self.daemons = []

    def start(self):
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            os.mkdir(os.path.join(self.folder, name), 0o755)
        os.chmod(self.folder, 0o755)
        with open(os.open(os.path.join(self.folder, "key"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(128))
        with open(self.environment["SLURM_CONF"], "w") as file:
            file.write(CONFIGURATION.format(folder=self.folder, host=host, user=pwd.getpwuid(os.geteuid()).pw_name, port=free_port(),
                                            node_port=free_port(), cpus=os.cpu_count()))
        files = [f"--{what}={self.folder}/{name}" for what, name in (("key-file", "key"), ("socket", "munge.sock"),
                 ("pid-file", "munged.pid"), ("log-file", "munged.log"), ("seed-file", "munged.seed"))]
        self.spawn("munged", "-F", "--force", *files)
        self.until("munge.sock", lambda: os.path.exists(os.path.join(self.folder, "munge.sock")))
        self.spawn("slurmctld", "-D")
        self.spawn("slurmd", "-D", "-N", host)
        self.until("an idle node", lambda: "idle" in run([self.program["sinfo"], "-h"], **self.environment)[1])

    def spawn(self, name, *arguments):
        with open(os.path.join(self.folder, name + ".out"), "w") as out:
            self.daemons.append(subprocess.Popen([self.program[name], *arguments], stdout=out, stderr=out, stdin=subprocess.DEVNULL,
                                                 env=clean_environment(**self.environment), start_new_session=True))

    def until(self, what, condition):
        end = time.monotonic() + START_LIMIT
        while not condition():
            if time.monotonic() > end or any(daemon.poll() is not None for daemon in self.daemons):
                raise Skip(f"Slurm cannot run here, no {what}: {self.last_words()}")
            time.sleep(0.1)

    def last_words(self):
        words = []
        for daemon in self.daemons:
            name = os.path.basename(daemon.args[0])
            for end in (".log", ".out"):
                path = os.path.join(self.folder, name + end)
                lines = open(path, errors="replace").read().strip().splitlines() if os.path.exists(path) else []
                words += [f"{name}: {lines[-1]}"] if lines else []
        return "; ".join(words)[-600:]

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def srun(self, ranks, *options):
        return [self.program["srun"], "--overcommit", "-n", str(ranks), *options]


def plain(slurm, table):
    said = run([slurm.program["srun"], "--mpi=list"], **slurm.environment)[1]
    if table not in said.split() + ["none"]:
        raise Skip(f"this Slurm has no plugin {table}: {' '.join(said.split())}")
    output = expect_sums([*slurm.srun(3, "--mpi=" + table), HELLO], 3, ABCOMM_DEBUG="INFO", **slurm.environment)
    assert ("by the launcher's PMI" in output) == (table == "pmi2"), output


def pmix(slurm):
    output = expect_sums([*slurm.srun(2, "--mpi=pmix"), HELLO], 2, ABCOMM_LAUNCHER="pmix", ABCOMM_DEBUG="INFO", **slurm.environment)
    assert "by the launcher's PMIx" in output, output


def two_steps_at_once(slurm):
    script = f"srun --overcommit --overlap -n 2 {HELLO} & srun --overcommit --overlap -n 2 {HELLO}; wait"
    code, output = run([*slurm.srun(1), "/bin/sh", "-c", "unset SLURM_STEP_ID SLURM_STEPID SLURM_STEP_NUM_TASKS; " + script],
                       **slurm.environment)
    assert code == 0 and output.count("of 2: the sum is 3") == 4, f"exit code {code}\n{output}"


def contradiction(slurm):
    code, output = run([*slurm.srun(2), HELLO], OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1", **slurm.environment)
    assert code != 0 and "SLURM_PROCID=1 of SLURM_STEP_NUM_TASKS=2" in output and "OMPI_COMM_WORLD_RANK=0" in output, output


def key_file(slurm):
    """Several nodes are only said here: the address comes from the node list, and that needs a key."""
    derive = "export SLURM_STEP_NUM_NODES=2; exec " + HELLO
    command = [*slurm.srun(2, "--mpi=none"), "/bin/sh", "-c", derive]
    key = os.path.join(slurm.folder, "job-key")
    with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(os.urandom(32))
    expect_sums(command, 2, ABCOMM_KEY_FILE=key, **slurm.environment)


def all_cases():
    try:
        slurm = Slurm()
    except Skip as reason:
        case("Slurm", lambda: (_ for _ in ()).throw(reason))
        return
    try:
        started = []
        case("Slurm starts", lambda: started.append(slurm.start()))
        if started:
            for table in ("none", "pmi2", "pmix"):
                case(f"srun --mpi={table}", plain, slurm, table)
            case("srun, over PMIx", pmix, slurm)
            case("two steps at once", two_steps_at_once, slurm)
            case("left-over variables of another launcher", contradiction, slurm)
            case("address from the node list", key_file, slurm)
    finally:
        slurm.stop()


all_cases()
finish()
