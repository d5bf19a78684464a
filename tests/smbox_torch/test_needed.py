"""Without PyTorch the package says what to install; what needs none of it imports none."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
sys.modules["torch"] = None  # as if it were not there
import smbox_torch
"""


def test_the_error_names_the_next_step():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        "ModuleNotFoundError: smbox_torch needs PyTorch: pip install 'smbox[torch]'"
        " (or 'smbox[demo]')"
    )


LAUNCHER = """
import sys
import smbox_torch.launching.run, smbox_torch.launching.agent
import smbox_torch.workers.reporter, smbox_torch.world
assert "torch" not in sys.modules
"""
FIRST_TENSOR = """
import smbox
import smbox_torch
import torch
with smbox.local("16MiB") as box:
    region = box.create("x", 3, "float32")
    region.put(torch.nn.Parameter(torch.ones(3)))  # no name of smbox_torch was asked for
    found = torch.zeros(3)
    region.get(out=found)
    assert found.tolist() == [1.0] * 3
assert smbox_torch.EASGD.__module__ == "smbox_torch.elastic.easgd"
assert set(smbox_torch.__all__) <= set(dir(smbox_torch))
try:
    smbox_torch.NoSuchName
except AttributeError:
    pass
"""


@pytest.mark.parametrize("code", [LAUNCHER, FIRST_TENSOR])
def test_torch_is_imported_only_where_it_is_needed(code: str):
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
