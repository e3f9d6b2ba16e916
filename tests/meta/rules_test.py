#!/usr/bin/env python3
"""rules_test.py - shows that edges.py and style.py see what they are there for: each case is a file that breaks one rule, or none."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import edges  # noqa: E402
import style  # noqa: E402

LONG = "/* x.c - long */\nint f(void);\nint f(void)\n{\n" + "    f();\n" * 100 + "    return 0;\n}\n"

# (what, check, path, text, number of faults)
CASES = [
    ("an algorithm sees plan.h", edges.check_includes, "src/algo/x.c", '#include "plan/plan.h"\n', 0),
    ("an algorithm sees part.h", edges.check_includes, "src/algo/x.c", '#include "plan/part.h"\n', 1),
    ("an algorithm sees base", edges.check_includes, "src/algo/x.c", '#include "base/base.h"\n', 1),
    ("a codec sees transport", edges.check_includes, "src/codec/x.c", '#include "transport/shm.h"\n', 1),
    ("transport sees reduce", edges.check_includes, "src/transport/x.c", '#include "reduce/reduce.h"\n', 1),
    ("reduce sees a codec, oddly spaced", edges.check_includes, "src/reduce/x.c", '  #  include "codec/codec.h"\n', 1),
    ("the executor sees both", edges.check_includes, "src/plan/run.c", '#include "reduce/reduce.h"\n#include "transport/shm.h"\n', 0),
    ("a part of the executor sees both", edges.check_includes, "src/plan/run_step.c", '#include "transport/shm.h"\n', 0),
    ("the checker sees transport", edges.check_includes, "src/plan/check.c", '#include "transport/shm.h"\n', 1),
    ("base sees somebody above", edges.check_includes, "src/base/x.c", '#include "plan/plan.h"\n', 1),
    ("the library sees tools", edges.check_includes, "src/api/x.c", '#include "tools/tools.h"\n', 1),
    ("a folder nobody knows", edges.check_includes, "src/magic/x.c", "", 1),
    ("the executor reduces", edges.check_movers, "src/plan/run.c", "abci_reduce(&r, a, b, c, 2, n);\n", 0),
    ("comm reduces", edges.check_movers, "src/comm/x.c", "    abci_reduce(&r, a, b, c, 2, n);\n", 1),
    ("comm copies", edges.check_movers, "src/comm/x.c", "    abci_copy (a, b, c, n, 0);\n", 1),
    ("names that only begin so", edges.check_movers, "src/comm/x.c", "    abci_reduce_family();\n", 0),
    ("no purpose", style.rule_purpose, "src/base/x.c", "#include <stdio.h>\n", 1),
    ("a purpose", style.rule_purpose, "src/base/x.c", "/*\n * x.c - does it\n */\n", 0),
    ("another file's purpose", style.rule_purpose, "src/base/x.c", "/* y.c - does it */\n", 1),
    ("a long function", style.rule_sizes, "tests/x.c", LONG, 1),
    ("a long line", style.rule_sizes, "src/base/x.c", "/* x.c - " + "x" * 140 + " */\n", 1),
    ("getenv", style.rule_getenv, "src/base/x.c", 'a = getenv("X");\n', 1),
    ("getenv where it may be", style.rule_getenv, "src/base/settings.c", 'a = getenv("X");\n', 0),
    ("getenv in a comment", style.rule_getenv, "src/base/x.c", "/* getenv(x) */\n", 0),
    ("printing", style.rule_printing, "src/base/x.c", 'printf("x");\n', 1),
    ("printing into a string", style.rule_printing, "src/base/x.c", 'snprintf(a, n, "printf(x)");\n', 0),
]


def main():
    failed = 0
    for what, check, path, text, wanted in CASES:
        if check in (edges.check_includes, edges.check_movers):
            faults = list(check(path, edges.without_comments(text)))
        else:
            faults = list(check([(path, text)]))
        if len(faults) != wanted:
            print(f"FAIL  {what}: wanted {wanted} faults, got {faults}")
            failed += 1
    print(f"{len(CASES) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
