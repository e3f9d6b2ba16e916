#!/usr/bin/env python3
"""test_budget.py OPS SLOWER - shows that the budget notices: SLOWER is OPS with a loop added to the road of every reduction."""
import csv
import os
import subprocess
import sys
import tempfile

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "budget.py")
ONE = "allreduce 8 blocking"
SKIP = 77


class Checks:
    passed = failed = 0

    def check(self, what, ok, text=""):
        self.passed, self.failed = self.passed + bool(ok), self.failed + (not ok)
        if not ok:
            print(f"FAIL  {what}\n{text}")


def run(ops, *arguments):
    done = subprocess.run([sys.executable, SCRIPT, ops, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    return done.returncode, done.stdout


def change(path, edit):
    """Rewrite the rows of a budget."""
    with open(path, encoding="utf-8", newline="") as file:
        first = file.readline()
        rows = list(csv.DictReader(file))
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(first)
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(edit(rows))


def scaled(rows, factor):
    for row in rows:
        row["control"] = str(int(int(row["control"]) * factor))
    return rows


def main():
    ops, slower = sys.argv[1:3]
    to = Checks()
    with tempfile.TemporaryDirectory(prefix="abcomm-budget-") as place:
        path = os.path.join(place, "budget.csv")
        code, text = run(ops, "--budget", path, "--update")
        if code == SKIP:
            print(text, end="")
            return SKIP
        to.check("a budget is written", code == 0 and os.path.exists(path), text)
        code, text = run(ops, "--budget", path)
        to.check("the counts repeat exactly", code == 0 and ", 0 failed" in text, text)
        code, text = run(slower, "--budget", path, "--only", ONE)
        to.check("a longer road fails", code == 1, text)
        to.check("and names what grew", "grew: __wrap_abci_reduce 0 -> " in text, text)
        to.check("and what to do", "./dev budget --update" in text, text)
        change(path, lambda rows: scaled(rows, 1.2))
        code, text = run(ops, "--budget", path, "--only", ONE)
        to.check("far below asks to lower it", code == 1 and "lower the budget" in text, text)
        change(path, lambda rows: scaled(rows, 0.8))  # 0.96 of the counts
        code, text = run(ops, "--budget", path, "--only", ONE)
        to.check("over by 4 % fails", code == 1 and "grew:" in text, text)
        change(path, lambda rows: [row for row in rows if row["mode"] != "blocking"])
        code, text = run(ops, "--budget", path, "--only", ONE)
        to.check("a case without a budget fails", code == 1 and "not in the budget" in text, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write("nonsense\n")
        code, text = run(ops, "--budget", path, "--only", ONE)
        to.check("a broken budget is refused", code not in (0, SKIP) and "./dev budget --update writes it" in text, text)
    print(f"{to.passed} passed, {to.failed} failed, 0 skipped")
    return 1 if to.failed else 0


if __name__ == "__main__":
    sys.exit(main())
