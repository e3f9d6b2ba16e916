#!/usr/bin/env python3
"""clients.py - runs programs that use torch.distributed, on a backend or on several, and compares their results.

Usage: clients.py BUILDDIR [--backend abcomm]... [--quick] [--ranks 2] [-k WORDS] [--install] [--record FILE] [--table FILE]

The clients are in clients/, one a subject, and test scripts that other packages ship. Each runs under torchrun with a limit of its own
and prints figures; those of training must be what Gloo's were (clients/gloo.json), within rounding. --quick: only what needs no package
but torch. --install: first install, into the tests' environment, the packages that the others need; without it they are skipped.
--record writes the figures, --table a page for the documentation. Ends with "N passed, N failed, N skipped".
"""
from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import job
import place

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "clients" / "gloo.json"
LIMIT = 120         # seconds for one client
TOLERANCE = 2e-3    # relative difference of trained figures between backends, which add in different orders
COMPILE_LIMIT = 300


class Client(NamedTuple):
    """A program that is run on each backend."""

    name: str
    what: str
    module: str = ""              # of a package, which asks for "gloo" by name: ours takes its place. Default: clients/NAME.py
    packages: list[str] = []      # beside torch
    options: list[str] = []       # of torchrun
    limit: int = LIMIT


ACCELERATE = "accelerate==1.15.0"
CLIENTS = [
    Client("ddp_digits", "DDP against one process, forked workers, batch norm, no_sync, uneven inputs"),
    Client("hooks", "DDP hooks of torch: fp16, PowerSGD, built-in, post-local SGD"),
    Client("zero", "ZeroRedundancyOptimizer, overlapped too, PostLocalSGDOptimizer"),
    Client("fsdp", "FSDP1, FSDP2, bf16, hybrid, clipping, full state dict"),
    Client("tensor_parallel", "DTensor layouts, tensor, sequence and loss parallel, 2-D with FSDP2"),
    Client("pipeline", "GPipe, 1F1B, interleaved 1F1B, receive from any source"),
    Client("checkpoint", "distributed checkpoint: save, load, async_save"),
    Client("compile_ddp", "torch.compile over DDP, functional collectives in a graph", limit=COMPILE_LIMIT),
    Client("elastic", "a killed rank, restarted by torchrun", options=["--max-restarts", "2"]),
    Client("accelerate_ops", "accelerate's own test_ops", module="accelerate.test_utils.scripts.test_ops", packages=[ACCELERATE]),
    Client("accelerate_sync", "accelerate's own test_sync", module="accelerate.test_utils.scripts.test_sync", packages=[ACCELERATE]),
    Client("accelerate_script", "accelerate's own test_script", module="accelerate.test_utils.scripts.test_script", packages=[ACCELERATE]),
    Client("lightning_digits", "Lightning's Trainer with DDPStrategy", packages=["lightning==2.6.6"]),
    Client("deepspeed_zero", "DeepSpeed ZeRO stages 0 to 3", packages=["deepspeed==0.19.8"], limit=COMPILE_LIMIT),
]


class Outcome(NamedTuple):
    """How a client ended."""

    result: str  # pass, fail or skip
    reason: str
    seconds: float
    figures: dict[str, float]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--backend", action="append", help="default: abcomm")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-k", action="append", default=[], metavar="WORDS", help="only clients whose names have these words")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--record", type=Path, help="write the figures of the first backend here")
    parser.add_argument("--table", type=Path, help="write a page with the results of all backends here")
    return parser.parse_args()


def installed(python: Path) -> dict[str, str]:
    """The versions of the packages in an environment, by name."""
    code = "import importlib.metadata as m; print('\\n'.join(f'{d.name}=={d.version}' for d in m.distributions()))"
    said = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout
    return dict(line.lower().split("==") for line in said.split())


def install(python: Path, clients: list[Client]) -> None:
    """The packages of these clients; DeepSpeed's build looks at the torch that is there."""
    wanted = sorted({package for client in clients for package in client.packages})
    if wanted:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation",
                        *wanted], check=True, stdin=subprocess.DEVNULL)


def run_client(client: Client, backend: str, python: Path, variables: dict[str, str], ranks: int) -> Outcome:
    """One client on one backend."""
    clients = HERE / "clients"
    program = [clients / "as_gloo.py", client.module] if client.module else [clients / f"{client.name}.py"]
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, *client.options, *program]
    more = {"CLIENT_BACKEND": backend, "TORCH_CPP_LOG_LEVEL": "ERROR"}
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="abcomm-client-") as folder:
        code, said = job.run(command, client.limit, {**variables, **more, "CLIENT_FOLDER": folder})
    seconds = time.monotonic() - start
    if code != 0:
        how = f"did not end within {client.limit} s" if code is None else f"exit code {code}"
        return Outcome("fail", f"{how}\n{said[-6000:]}", seconds, {})
    found = re.search(r"^.*results (\{.*\})$", said, re.M)
    if not client.module and not found:
        return Outcome("fail", f"printed no results\n{said[-6000:]}", seconds, {})
    return Outcome("pass", "", seconds, json.loads(found[1]) if found else {})


def difference(got: dict[str, float], want: dict[str, float]) -> float:
    """The largest relative difference between figures that both have."""
    return max((abs(got[name] - want[name]) / max(abs(want[name]), 1e-30) for name in got.keys() & want.keys()), default=0.0)


def judge(client: Client, backend: str, outcome: Outcome, figures: dict[str, dict[str, float]]) -> Outcome:
    """A client whose figures differ from Gloo's has failed."""
    want = figures.get(client.name, {})
    if outcome.result != "pass" or backend == "gloo" or difference(outcome.figures, want) <= TOLERANCE:
        return outcome
    return outcome._replace(result="fail", reason=f"figures {outcome.figures}, on Gloo {want}")


def table(path: Path, results: dict[str, dict[str, Outcome]], versions: dict[str, str], ranks: int) -> None:
    """The page of the documentation."""
    backends = list(next(iter(results.values())))
    lines = ["# Programs that run on PyTorch's backend", "",
             f"Made by `./dev clients --install --table` with torch {versions['torch'].partition('+')[0]}, {ranks} ranks. Each program is "
             "run by torchrun without a change", "but the backend's name; those marked * ask for \"gloo\" and run on `abcomm` through "
             "`abcomm.torch.replace_gloo()`. The last column is the", "largest relative difference of a figure, such as the norm of the "
             "trained weights, between the backends, which add in different", "orders from three ranks on.", "",
             "| program | what | " + " | ".join(backends) + " | difference |", "| --- | --- | " + "--- | " * (len(backends) + 1)]
    for client in CLIENTS:
        row = results.get(client.name)
        if row is None:
            continue
        words = ", ".join(f"{name} {versions[name]}" for name in (p.partition("==")[0] for p in client.packages) if name in versions)
        what = f"{client.what} ({words})" if words else client.what
        compared = [outcome.figures for outcome in row.values()]
        apart = ""
        if len(compared) > 1 and all(compared):
            apart = f"{difference(compared[-1], compared[0]):.0e}".replace("0e+00", "none")
        lines.append(f"| {client.name}{'*' if client.module else ''} | {what} | "
                     + " | ".join(row[backend].result for backend in backends) + f" | {apart} |")
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")


def main() -> int:
    options = parse()
    backends = options.backend or ["abcomm"]
    python, variables = place.ready(options.build)
    chosen = [client for client in CLIENTS if not (options.quick and client.packages)
              and (not options.k or any(words in client.name for words in options.k))]
    if options.install:
        install(python, chosen)
    versions = installed(python)
    figures = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.exists() else {}
    results: dict[str, dict[str, Outcome]] = {}
    for client in chosen:
        for backend in backends:
            missing = [package for package in client.packages if package.partition("==")[0] not in versions]
            outcome = Outcome("skip", f"needs {' '.join(missing)}; --install installs it", 0.0, {}) if missing else judge(
                client, backend, run_client(client, backend, python, variables, options.ranks), figures)
            results.setdefault(client.name, {})[backend] = outcome
            print(f"{outcome.result:5} {client.name} on {backend} ({outcome.seconds:.1f} s) {outcome.reason}", flush=True)
    outcomes = [outcome for row in results.values() for outcome in row.values()]
    if options.record:
        kept = {name: row[backends[0]].figures for name, row in results.items() if row[backends[0]].figures}
        options.record.write_text(json.dumps({**figures, **kept}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if options.table and outcomes:
        table(options.table, results, versions, options.ranks)
    passed, failed, skipped = (sum(outcome.result == word for outcome in outcomes) for word in ("pass", "fail", "skip"))
    print(f"{passed} passed, {failed} failed, {skipped} skipped; {sum(outcome.seconds for outcome in outcomes):.0f} s")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
