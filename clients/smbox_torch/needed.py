"""What smbox_torch needs beyond smbox; imported first, so that its lack has a clear error."""

from __future__ import annotations

try:
    import torch  # noqa: F401 - only seen to be there
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "smbox_torch needs PyTorch: pip install 'smbox[torch]' (or 'smbox[demo]')", name="torch"
    ) from error
