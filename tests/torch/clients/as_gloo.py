"""as_gloo.py - runs a module of another package that asks torch for "gloo": as_gloo.py MODULE. On our backend ours takes Gloo's place,
and must have had all the work.
"""
import os
import runpy
import sys

import common


def use_cpu() -> None:
    """Without this accelerate takes ranks on a machine without a GPU for programs of one process."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    from accelerate import PartialState

    assert PartialState(cpu=True).num_processes > 1


def main() -> None:
    common.register()
    watch = common.watch_gloo()
    if common.BACKEND != "gloo":
        import abcomm.torch

        abcomm.torch.replace_gloo()
    module = sys.argv.pop(1)
    if module.startswith("accelerate."):
        use_cpu()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    common.check_calls(watch, ())


if __name__ == "__main__":
    main()
