"""A sample of the stepped commits; `make chaos` steps them all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smbox.testing.stepping.tracee import why_impossible

pytestmark = pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible()))


@pytest.mark.timeout(120)
def test_no_instruction_of_a_commit_a_recovery_or_a_read_is_a_wrong_place_to_die():
    """Runs in another process, where stripes are small."""
    command = [sys.executable, "-m", "smbox.testing.stepping", "--sample"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
