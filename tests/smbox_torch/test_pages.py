"""The code of the pages of docs/algorithms runs, as the one worker of `smbox run`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

BLOCK = re.compile(r"(?P<before>[^\n]*)\n+```python\n(?P<code>.*?)\n```", re.DOTALL)
NOT_RUN = "<!-- not run"
RUN = ("-c", "from smbox.cli.main import main; main()", "run")


def code_of(page: Path) -> str:
    blocks = BLOCK.finditer(page.read_text())
    return "\n".join(block["code"] for block in blocks if NOT_RUN not in block["before"])


FOLDER = Path(__file__).resolve().parents[2] / "docs" / "algorithms"
PAGES = [page for page in sorted(FOLDER.glob("*.md")) if code_of(page)]


def test_the_code_of_every_page_runs(preloaded: str, tmp_path: Path):
    assert {"easgd", "hybrid", "sync_group"} <= {page.stem for page in PAGES}
    for page in PAGES:
        (tmp_path / page.name).write_text(code_of(page))
    script = tmp_path / "all.py"
    script.write_text(
        "import runpy\n" + "".join(f"runpy.run_path({page.name!r})\n" for page in PAGES)
    )
    own = {name: os.environ[name] for name in os.environ if "SMBOX_" not in name}
    done = subprocess.run(
        [preloaded, *RUN, "--memory", "64MiB", preloaded, script],
        cwd=tmp_path,
        env=own | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
