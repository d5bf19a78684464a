"""Build hook: compiles smbox/native into one shared library and puts it into the wheel.

A wheel gets the library and the tag py3-none-<platform>. An editable install gets it beside its
sources. Outside 64-bit Linux on x86-64 and aarch64, or with SMBOX_NO_NATIVE=1, the wheel is
pure: its clients are remote only.
"""

from __future__ import annotations

import importlib.util
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def load_compiling(root: str) -> ModuleType:
    """Load smbox/native/compiling.py by its path: smbox's dependencies are not here."""
    path = Path(root, "smbox", "native", "compiling.py")
    spec = importlib.util.spec_from_file_location("smbox_native_compiling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NativeBuildHook(BuildHookInterface[Any]):
    """Compiles the native library for wheels and editable installs."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return the ziglang package, which brings a compiler, where the system has none."""
        compiling = load_compiling(self.root)
        if compiling.why_unwanted() is None and compiling.system_compiler() is None:
            return [compiling.ZIG_REQUIREMENT]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library; ``version`` is "standard" for a wheel, or "editable"."""
        compiling = load_compiling(self.root)
        if compiling.why_unwanted() is not None:
            return
        if version == "editable":
            compiling.build_in_place()
            return
        self.building = tempfile.TemporaryDirectory()
        target = Path(self.building.name, compiling.file_name())
        compiling.compile_library(
            target, compiling.system_compiler() or compiling.zig_compiler()
        )
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(target)] = f"smbox/native/{target.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder that the library was compiled in."""
        del version, build_data, artifact_path
        if hasattr(self, "building"):
            self.building.cleanup()
