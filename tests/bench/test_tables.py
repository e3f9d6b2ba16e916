#!/usr/bin/env python3
"""test_tables.py - bench/table.py: the peer's best setting is chosen, ratios are medians over runs, regressions are named.

Usage: test_tables.py BENCHDIR
"""
import os
import subprocess
import sys
import tempfile

TABLE = os.path.join(sys.argv[1], "table.py")
TUNING = """default,2,8,oop,0.50,,,0.06,200,0,0
ucx,2,8,oop,0.20,,,0.06,200,0,0
broken,2,8,oop,0.01,,,0.06,200,3,0
default,2,8,ip,0.30,,,0.06,200,0,0
mpirun was killed
"""
# Ratios of ucx out of place: 2, 4, 3.
RUNS = """1,ucx,2,8,oop,0.20,0.10,0.05,0.06,200,0,0
2,ucx,2,8,oop,0.40,0.10,0.05,0.06,200,0,0
3,ucx,2,8,oop,0.30,0.10,0.05,0.06,200,0,0
1,default,2,8,oop,0.25,0.20,0.05,0.06,200,0,0
1,default,2,8,ip,0.30,0.40,0.05,0.30,200,0,0
2,default,2,8
"""


def table(*args):
    return subprocess.run([sys.executable, TABLE, *args], capture_output=True, text=True, timeout=30, check=False)


def main():
    with tempfile.TemporaryDirectory() as place:
        def path(name, text=None):
            full = os.path.join(place, name)
            if text is not None:
                with open(full, "w") as f:
                    f.write(text)
            return full

        best = table("choose", path("tuning.csv", TUNING)).stdout
        assert best == "2,8,oop,ucx,0.2\n2,8,ip,default,0.3\n", best
        assert table("settings", path("best.csv", best), "2").stdout.split() == ["default", "ucx"]
        done = table("report", path("best.csv"), path("runs.csv", RUNS), path("out.csv"))
        assert done.returncode == 0, done.stderr
        with open(path("out.csv")) as f:
            lines = f.read().splitlines()
        header, oop, ip = (line.split(",") for line in lines)
        oop, ip = dict(zip(header, oop)), dict(zip(header, ip))
        assert (oop["ratio"], oop["ratio_q1"], oop["ratio_q3"], oop["runs"]) == ("3.0", "2.5", "3.5", "3"), oop
        assert (oop["ratio_lowest"], oop["mode"], ip["mode"]) == ("1.25", "near", "far"), (oop, ip)
        assert "faster" in done.stdout and "**slower**" in done.stdout, done.stdout

        same = table("compare", path("out.csv"), path("out.csv"))
        assert same.returncode == 0 and "2 cells compared, 0 worse" in same.stdout, same.stdout
        worse = table("compare", path("out.csv"), path("new.csv", "\n".join(lines).replace(",3.0,", ",2.6,")))
        assert worse.returncode == 1 and "worse: 2 ranks, 8 B oop: ratio 3.00 -> 2.60" in worse.stdout, worse.stdout
        assert table("compare", path("out.csv")).returncode != 0
        assert table("report", path("best.csv"), path("tuning.csv"), path("x.csv")).returncode != 0
    print("ok")


if __name__ == "__main__":
    main()
