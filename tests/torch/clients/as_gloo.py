"""as_gloo.py - runs a module of another package that asks torch for "gloo": as_gloo.py MODULE. On our backend ours takes Gloo's place,
and must have had all the work.
"""
import runpy
import sys

import common
from watch import GlooWatch


def main() -> None:
    common.register()
    watch = GlooWatch(keep=False)
    watch.install()
    if common.BACKEND != "gloo":
        import abcomm.torch

        abcomm.torch.replace_gloo()
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    common.check_calls(watch, ())


if __name__ == "__main__":
    main()
