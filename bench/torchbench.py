#!/usr/bin/env python3
"""torchbench.py - PyTorch on abcomm beside PyTorch on gloo; `./dev bench torch` calls it. Standard library only.

  torchbench.py BUILDDIR [--quick] [--ranks LIST] [--parts LIST] [--runs N] [--out DIR]

Each part runs under torchrun, in fresh processes for each run and number of ranks (torch_rank.py, torch_models.py); torch is the one
of the tests, in BUILDDIR/torch. Writes torch.csv and torch.md. What cannot run is left out and told. Exit code: 1 after a wrong result,
3 when nothing was measured.
"""
import argparse
import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import table

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
sys.path.insert(0, str(TREE / "tests" / "torch"))
import place  # noqa: E402
import torch_table  # noqa: E402

PARTS = ("operations", "overhead", "ddp", "fsdp", "inference")
DEEPSPEED = "deepspeed==0.19.8"
SCALE, QUICK_SCALE = 0.4, 0.05
RUN_LIMIT, BUILD_LIMIT = 120, 900  # seconds for one job, and for DeepSpeed's C++
BUILD = "from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder; ShareMemCommBuilder().load()"


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Bench:
    """One measurement: where it runs, what it has found, what it had to leave out."""

    def __init__(self, args):
        self.args, self.rows, self.notes = args, [], []
        self.work = Path(args.builddir).resolve() / "bench-work"
        self.work.mkdir(parents=True, exist_ok=True)
        say("preparing torch")
        self.python, self.variables = place.ready(args.builddir)
        self.variables |= {"PYTHONPATH": os.pathsep.join([str(HERE), self.variables["PYTHONPATH"]]), "DS_ACCELERATOR": "cpu",
                           "TORCH_EXTENSIONS_DIR": str(self.work / "torch-extensions")}

    def note(self, what, text):
        say(f"{what}: {text}")
        self.notes.append((what, text))

    def limited(self, seconds, *command):
        """(exit code, or None when it was not over in time; what was printed)."""
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", env=self.variables, start_new_session=True)
        try:
            said, _ = process.communicate(timeout=seconds)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its ranks, which have sessions of their own
            try:
                process.communicate(timeout=35)
            except subprocess.TimeoutExpired:
                process.kill()
            return None, ""

    def prepare_deepspeed(self):
        """True if DeepSpeed and its sum in shared memory are here; made once, in the environment of the tests."""
        stamp = self.work / "torch-extensions" / "built.txt"
        if stamp.exists():
            return True
        say(f"installing {DEEPSPEED} and building its operation")
        for command in (["-m", "pip", "install", "--quiet", "--disable-pip-version-check", DEEPSPEED, "ninja"], ["-c", BUILD]):
            code, said = self.limited(BUILD_LIMIT, self.python, *command)
            if code != 0:
                self.note("left out", f"DeepSpeed: {(said.strip().splitlines() or ['no end'])[-1][:200]}")
                return False
        stamp.write_text(DEEPSPEED, encoding="utf-8")
        return True

    def run(self, part, ranks, run):
        """One job; its rows are kept, with the number of the run."""
        say(f"run {run}, {ranks} ranks, {part}")
        quick = ["quick"] if self.args.quick else []
        code, said = self.limited(RUN_LIMIT, self.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}",
                                  HERE / "torch_rank.py", part, QUICK_SCALE if quick else SCALE, *quick)
        for line in said.splitlines():
            if line.startswith("row "):
                self.rows.append({**json.loads(line[4:]), "run": run})
            elif line.startswith("note "):
                self.note("left out", line[5:])
        if code != 0:
            (self.work / f"torch-{part}-{ranks}.err").write_text(said, encoding="utf-8")
            self.note("left out", f"{part} with {ranks} ranks, run {run}: "
                                  + (f"no end within {RUN_LIMIT} s" if code is None else f"exit code {code}; see bench-work/"))

    def measure(self):
        parts = list(self.args.parts)
        if "inference" in parts and not self.prepare_deepspeed():
            parts.remove("inference")
        self.notes.append(("load at the beginning", " ".join(f"{x:.1f}" for x in os.getloadavg())))
        for run in range(1, self.args.runs + 1):
            for ranks in self.args.ranks:
                for part in parts:
                    if ranks == 2 or part not in ("overhead", "inference"):
                        self.run(part, ranks, run)

    def report(self):
        if not self.rows:
            say("nothing was measured")
            return 3
        code, said = self.limited(60, self.python, "-c", "import torch; print(torch.__version__)")
        facts = [*table.machine(), ("torch", said.strip() if code == 0 else "?"), ("DeepSpeed", DEEPSPEED), ("runs", str(self.args.runs))]
        cells = torch_table.summarise(self.rows)
        base = Path(self.args.out or self.work) / "torch"
        base.parent.mkdir(parents=True, exist_ok=True)
        with open(f"{base}.csv", "w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, torch_table.COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(cells)
        text = torch_table.markdown(cells, [*facts, *self.notes])
        Path(f"{base}.md").write_text(text, encoding="utf-8")
        print(text, end="")
        return 1 if any(cell["wrong"] for cell in cells) else 0


def arguments():
    def words(text):
        return text.split(",")

    def numbers(text):
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(prog="./dev bench torch", allow_abbrev=False, description=__doc__.split("\n\n")[2])
    parser.add_argument("builddir", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="does it work? one short run; results stay in the build directory")
    parser.add_argument("--ranks", type=numbers, default=[2, 4], help="default: 2,4")
    parser.add_argument("--parts", type=words, default=list(PARTS), help=f"of {','.join(PARTS)}; default: all")
    parser.add_argument("--runs", type=int, help="fresh processes for each part; default: 3")
    parser.add_argument("--out", metavar="DIR", help="default: bench/results, with --quick the build directory")
    args = parser.parse_args()
    unknown = [part for part in args.parts if part not in PARTS]
    if unknown or min(args.ranks, default=0) < 2:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}" if unknown else "--ranks needs numbers from 2 on")
    args.runs = args.runs or (1 if args.quick else 3)
    args.out = args.out or (None if args.quick else str(HERE / "results"))
    return args


def main():
    bench = Bench(arguments())
    bench.measure()
    return bench.report()


if __name__ == "__main__":
    sys.exit(main())
