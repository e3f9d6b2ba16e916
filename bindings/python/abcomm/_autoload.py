"""_autoload.py - called at the end of `import torch`, through the entry point torch.backends: for programs that do not know this package.

Does nothing unless ABCOMM_TORCH_REPLACE_GLOO is set, and never makes the import of torch fail.
"""
import logging
import os


def register() -> None:
    """Replace Gloo if the environment asks for it."""
    if os.environ.get("ABCOMM_TORCH_REPLACE_GLOO", "").lower() not in ("1", "true", "yes", "on"):
        return
    try:
        from abcomm.torch import replace_gloo

        replace_gloo()
    except Exception as error:
        logging.getLogger("abcomm.torch").error("abcomm: ABCOMM_TORCH_REPLACE_GLOO is set, but Gloo cannot be replaced: %s", error)
