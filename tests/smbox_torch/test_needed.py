"""Without PyTorch the package says what to install."""

from __future__ import annotations

import subprocess
import sys

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
