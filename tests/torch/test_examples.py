"""test_examples.py - the PyTorch examples, and the quick start of docs/pytorch.md, run as a reader would run them."""
import re

import pytest
from conftest import HERE, fine, torchrun

TREE = HERE.parent.parent
EXAMPLES = TREE / "examples"


def test_quick_start(tmp_path):
    """The first program of the page, as it stands there."""
    page = (TREE / "docs" / "pytorch.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.S)[1]
    assert len(program.splitlines()) <= 12
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    code, said = torchrun(2, tmp_path / "train.py")
    assert fine(code, said) and said.count("loss") == 2, said


def test_digits():
    code, said = torchrun(2, EXAMPLES / "torch_digits.py")
    share = re.search(r"([\d.]+) % of unseen digits are right; same weights on all 2 ranks", said)
    assert fine(code, said) and share and float(share[1]) > 93, said


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
def test_language(how):
    code, said = torchrun(2, EXAMPLES / "torch_language.py", how)
    losses = re.search(rf"{how}: loss ([\d.]+) at first, ([\d.]+) after", said)
    assert fine(code, said) and losses and float(losses[2]) < 0.6 * float(losses[1]), said
    assert "reduce_scatter" in said if how == "fsdp" else "broadcast" in said


def test_elastic_restart(tmp_path):
    code, said = torchrun(2, EXAMPLES / "torch_elastic.py", tmp_path / "checkpoint", restarts=1)
    assert code == 0 and "attempt 1 goes on at step 10" in said and "done after 30 steps" in said, said
