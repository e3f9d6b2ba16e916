#!/usr/bin/env python3
"""peers.py - collectives against other libraries on this host; `./dev bench peers` calls it. Standard library only.

  peers.py BUILDDIR [--quick] [--minutes M] [--peers LIST] [--ranks LIST] [--runs N] [--best FILE] [--out DIR] [--name NAME]

First every setting of every peer runs once and the best ones of each cell go to a file; then the settings that are best somewhere run
again, in N rounds of fresh processes, ours and the peer's calls alternating in each (bench/compare.c). Each round also has the other
collectives, and our calls among themselves. table.py, targets.py and plot.py make of it NAME.md, NAME.csv, NAME.svg, and
NAME-samples.csv, every single sample, compressed when it is large.

What cannot be installed, built or started is left out and the tables say so. A program that crashes or hangs is ended with all that it
has started; what it did not reach is left out from then on. When the time is over no further program starts. docs/benchmarking.md says how to
read the results. Exit code: 1 after a wrong result or a time below its bound, 3 when nothing could be measured.
"""
import argparse
import collections
import csv
import ctypes
import lzma
import os
import signal
import subprocess
import sys
import time

import plot
import table
from peer_list import CPUS, ROOT, Unusable, all_peers, own

MINUTES, QUICK_MINUTES = 40, 3
RUN_LIMIT, QUICK_LIMIT = 90, 20       # seconds for one program
FULL_SCALE, TUNING_SCALE, QUICK_SCALE = "1", "0.5", "0.05"
MOST_BYTES, QUICK_BYTES = 32 << 20, 512 << 10
CROWDS, CROWD_BYTES, CROWD_SCALE, CROWD_RUNS = (64, 128), 64 << 10, "0.1", 2
TUNING_PART = 0.4                     # of the time, at most
MOST_ROUNDS = 2                       # times the runs that were asked for, until each mode has enough of them
LARGE = 200_000                       # bytes of samples that stay uncompressed
REPORT_SECONDS = 5
PR_SET_CHILD_SUBREAPER = 36


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def guard_children():
    """What a launcher leaves behind becomes our child, so that it can be found and ended. Also when we are told to end."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))  # run_limited has its finally


def descendants():
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as f:
                    parents[int(name)] = int(f.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                pass  # it has just ended
    found, level = [], [os.getpid()]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def end_all():
    """Ends and collects every process below us."""
    while True:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def run_limited(limit, command, env, errors):
    """(exit code, or None after `limit` seconds; stdout). Nothing of what the command started is left."""
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        said, code = process.communicate(timeout=limit)[0], process.returncode
    except subprocess.TimeoutExpired:
        end_all()
        said, code = process.communicate()[0], None
    finally:
        end_all()
    return code, said


class Bench:
    """One measurement: the peers that are usable, what is left out and why, where files go, how much is measured, until when."""

    def __init__(self, builddir, args):
        self.args, self.builddir = args, builddir
        self.work = os.path.join(builddir, "bench-work")
        self.peers, self.notes, self.late = {}, [], False
        self.most = {}  # (ranks, setting, part) -> bytes beyond which it failed; 0: leave it
        self.start_clock()
        self.limit = QUICK_LIMIT if args.quick else RUN_LIMIT
        os.makedirs(self.work, exist_ok=True)
        os.makedirs(args.out or self.work, exist_ok=True)
        for name in ("tuning.csv", "runs.csv", "samples.csv", "peers.err"):
            open(self.path(name), "w").close()

    def path(self, name):
        return os.path.join(self.work, name)

    def leave_out(self, what, reason):
        say(f"{what} is left out: {reason}")
        self.notes.append(("left out", f"{what}: {reason}"))

    def add(self, name, peer):
        say(f"preparing {peer.title}")
        try:
            peer.install(self.path("peer-" + name))
            peer.build(self.builddir, self.path("compare-" + name))
        except Unusable as reason:
            self.leave_out(name, reason)
            return
        self.peers[name] = peer
        self.notes.append(("peer " + name, peer.version))

    def prepare(self):
        """What is installed once is not counted as measuring."""
        for name in self.args.peers:
            self.add(name, all_peers()[name])
        if self.peers:
            self.add("own", own())
        self.start_clock()
        self.notes.append(("load at the beginning", " ".join(f"{x:.1f}" for x in os.getloadavg())))

    def start_clock(self):
        self.begin = time.monotonic()
        self.end = self.begin + self.args.minutes * 60 - REPORT_SECONDS

    def settings(self, name, ranks):
        peer = self.peers[name]
        known = list(peer.settings_for(ranks > CPUS))
        return [word for word in (peer.quick if self.args.quick else known) if word in known]

    def one(self, ranks, setting, part, run=None, scale=FULL_SCALE):
        """One start of compare.c; its rows go to runs.csv and samples.csv, or to tuning.csv. Complete rows of a failed run count."""
        peer, word = setting.split("/")
        left = self.end - time.monotonic()
        most = self.most.get((ranks, setting, part), MOST_BYTES)
        if left < 1 or most == 0:
            self.late = self.late or left < 1
            return
        say(f"{'tuning' if run is None else f'run {run}'}, {ranks} ranks, {setting}, {part}")
        if self.args.quick:
            most, scale = min(most, QUICK_BYTES), QUICK_SCALE
        if part == "crowd":
            most = min(most, CROWD_BYTES)
        command, env = self.peers[peer].command(ranks, word)
        with open(self.path("peers.err"), "a") as errors:
            code, said = run_limited(min(self.limit, left), [*command, setting, part, str(most), scale], env, errors)
        rows = self.keep(said, setting, "" if run is None else f"{run},")
        if code is None and left < self.limit:
            self.late = True
        elif code != 0:
            self.skip(ranks, setting, part, f"no end within {self.limit} s" if code is None else f"exit code {code}", rows)

    def skip(self, ranks, setting, part, why, rows):
        """After a failure: what was complete, out of place and in place, is tried again, larger sizes are not."""
        sizes = collections.Counter(int(row.split(",")[3]) for row in rows)
        complete = [size for size, count in sizes.items() if count == 2 and part in ("tune", "allreduce")]
        before = self.most.get((ranks, setting, part), MOST_BYTES)
        most = max(complete, default=0)
        most = most if most < before else 0
        for which in ("tune", "allreduce") if part == "tune" else (part,):
            self.most[ranks, setting, which] = most
        beyond = f"above {table.human(most)}, " if most else ""
        self.leave_out(f"{setting} with {ranks} ranks, {part}", f"{beyond}{why}; its words are in bench-work/peers.err")

    def keep(self, said, setting, prefix):
        """The rows among what a program said; launchers put a rank before them."""
        rows = []
        for kind, name in (("row", "runs.csv" if prefix else "tuning.csv"), ("samples", "samples.csv")):
            with open(self.path(name), "a") as out:
                for line in said.splitlines():
                    start = line.find(f"{kind},{setting},")
                    if start >= 0:
                        row = line[start + len(kind) + 1:]
                        out.write(prefix + row + "\n")
                        rows += [row] if kind == "row" and row.count(",") == len(table.RAW) - 1 else []
        return rows

    def to_tune(self, ranks):
        """The first setting of each peer, then the second ones: where time is short, each peer has had its turn."""
        jobs = [(place, name, word) for name, peer in self.peers.items() if name != "own" and ranks <= (peer.most_ranks or ranks)
                for place, word in enumerate(self.settings(name, ranks))]
        return [f"{name}/{word}" for _, name, word in sorted(jobs, key=lambda job: job[0])]

    def tune(self):
        for turn, ranks in enumerate(self.args.ranks, 1):
            until = self.begin + TUNING_PART * (self.end - self.begin) * turn / len(self.args.ranks)
            late = []
            for setting in self.to_tune(ranks):
                if time.monotonic() < until:
                    self.one(ranks, setting, "tune", scale=TUNING_SCALE)
                else:
                    late.append(setting)
            if late:
                self.notes.append(("not tried", f"{ranks} ranks, no time was left for tuning: {', '.join(late)}"))
        table.choose(self.path("tuning.csv"), self.path("best.csv"))

    def compare(self, run, ranks, best):
        """One round: what is best somewhere, the other collectives, short types, our own calls."""
        wanted = [(setting, "allreduce") for setting in table.best_somewhere(best, ranks) if setting.split("/")[0] in self.peers]
        for name, peer in self.peers.items():
            parts = {"collectives": peer.others, "rest": peer.others, "types": peer.types}
            for part in parts if ranks == 2 else ["collectives"]:
                words = [word for word in parts[part] if word in peer.settings_for(ranks > CPUS)]
                wanted += [(f"{name}/{word}", part) for word in (words[:1] if self.args.quick else words)]
        if "own" in self.peers and ranks == 2:
            wanted.append(("own/blocking", "own"))
        for setting, part in wanted:
            self.one(ranks, setting, part, run)

    def crowd(self, run):
        """Many ranks on few CPUs; small sizes, for buffers of all of them."""
        for name, peer in self.peers.items():
            for ranks in CROWDS if not self.args.quick else []:
                for word in peer.crowd:
                    self.one(ranks, f"{name}/{word}", "crowd", run, CROWD_SCALE)

    def missing_mode(self):
        """A mode of two ranks that was seen, in fewer runs than were asked for."""
        seen = table.runs_by_mode(self.path("runs.csv"))
        return any(0 < count < self.args.runs for mode, count in seen.items() if mode != "-")

    def measure(self):
        if not self.args.best:
            self.tune()
        best = self.args.best or self.path("best.csv")
        for run in range(1, self.args.runs + 1):
            for ranks in self.args.ranks:
                self.compare(run, ranks, best)
            if run <= CROWD_RUNS:
                self.crowd(run)
        for run in range(self.args.runs + 1, MOST_ROUNDS * self.args.runs + 1):
            if self.late or 2 not in self.args.ranks or self.args.quick or not self.missing_mode():
                break
            self.compare(run, 2, best)
        took = (time.monotonic() - self.begin) / 60
        self.notes.append(("time", f"{took:.1f} minutes" + (", all that were allowed: the last runs are missing" if self.late else "")))
        if self.late:
            say(f"the {self.args.minutes:g} minutes are over; the last runs are missing")

    def report(self):
        with open(self.path("notes.csv"), "w", newline="") as f:
            csv.writer(f, lineterminator="\n").writerows(self.notes)
        base = os.path.join(self.args.out or self.work, self.args.name)
        try:
            rows = table.make(self.path("runs.csv"), base + ".csv")
        except table.Empty as reason:
            say(reason)
            return 3
        with open(base + ".md", "w") as f:
            f.write(table.markdown(rows, table.read_notes(self.path("notes.csv")), self.args.name))
        with open(base + ".svg", "w") as f:
            f.write(plot.svg(rows))
        self.keep_samples(base)
        with open(base + ".md") as f:
            print(f.read(), end="")
        return 1 if any(int(r["wrong"]) for r in rows) or table.below_bound(rows) else 0

    def keep_samples(self, base):
        with open(self.path("samples.csv"), "rb") as f:
            samples = f.read()
        for suffix in ("-samples.csv", "-samples.csv.xz"):
            if os.path.exists(base + suffix):
                os.unlink(base + suffix)
        head = b"run,setting,what,ranks,bytes,place,who,nanoseconds\n"
        if len(samples) > LARGE:
            with lzma.open(base + "-samples.csv.xz", "wb") as f:
                f.write(head + samples)
        else:
            with open(base + "-samples.csv", "wb") as f:
                f.write(head + samples)


def arguments():
    def listed(text):
        return text.split(",")

    parser = argparse.ArgumentParser(prog="./dev bench peers", allow_abbrev=False, description=__doc__.split("\n\n")[2])
    parser.add_argument("builddir", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one short run of few settings with 2 and 4 ranks, to 512 KB; results stay "
                        "in the build directory")
    parser.add_argument("--minutes", type=float, help=f"start nothing after that time; default: {MINUTES}, with --quick {QUICK_MINUTES}")
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
    args.minutes = args.minutes if args.minutes is not None else QUICK_MINUTES if args.quick else MINUTES
    if min(args.ranks) < 2 or args.runs < 1:
        parser.error("--ranks needs 2 or more each, --runs 1 or more")
    if not args.minutes > 0:
        parser.error("--minutes needs a number above 0")
    if args.best and not os.path.exists(args.best):
        parser.error(f"--best {args.best}: no such file")
    if not args.out and not args.quick:
        args.out = os.path.join(ROOT, "bench", "results")
    return args


def main():
    args = arguments()
    guard_children()
    bench = Bench(os.path.abspath(args.builddir), args)
    bench.prepare()
    if not bench.peers:
        say("no peer is usable; the reasons are above")
        return 3
    bench.measure()
    return bench.report()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        end_all()
        sys.exit(130)
