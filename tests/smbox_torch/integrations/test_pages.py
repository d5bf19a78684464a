"""The code of every page of docs/frameworks runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).resolve().parents[3] / "docs" / "frameworks").glob("*.md"))
FRAMEWORKS = {"accelerate", "lightning", "transformers"}


def test_there_are_pages():
    assert len(PAGES) >= 7


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, frameworks: str, tmp_path: Path):
    code = "\n".join(re.findall(r"```python\n(.*?)\n```", page.read_text(), re.DOTALL))
    assert code
    needed = FRAMEWORKS & set(re.findall(r"^from (\w+)", code, re.MULTILINE))
    missing = sorted(name for name in needed if importlib.util.find_spec(name) is None)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install 'smbox[frameworks]'")
    environment = {key: os.environ[key] for key in os.environ if "SMBOX_" not in key}
    done = subprocess.run(
        [frameworks, "-c", code],
        cwd=tmp_path,
        env=environment | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
