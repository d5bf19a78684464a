"""What smbox_torch needs beyond smbox; imported first, so that its lack has a clear error."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "smbox_torch needs PyTorch: pip install 'smbox[torch]' (or 'smbox[demo]')", name="torch"
    )
