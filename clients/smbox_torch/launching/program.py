"""The program that a command line starts, and the check that it exists.

-m NAME ...    the module or package NAME, by this Python
FILE.py ...    the file, by this Python
PROGRAM ...    anything else: a program, by its path or found in PATH
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from smbox.errors import ConfigError

NO_MODULE, NO_MAIN = 3, 4
FIND: Final = f"""
import sys
from importlib.util import find_spec
found = find_spec(sys.argv[1])
if found is None:
    sys.exit({NO_MODULE})
if found.submodule_search_locations is not None and not find_spec(sys.argv[1] + ".__main__"):
    sys.exit({NO_MAIN})
"""
"""Finds a module, importing only the packages around it; exits with one of these codes or 0."""


def command_of(words: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return program and arguments.

    Args:
        words: of the command line; the first decides.
        env: of the workers: PATH, PYTHONPATH.

    Raises:
        ConfigError: nothing to start, or it is not there; nothing was started.
    """
    if not words:
        raise ConfigError("nothing to run: name a script, -m and a module, or a program")
    if words[0] == "-m":
        _check_module(words[1:2], env)
        return (sys.executable, *words)
    if words[0].endswith(".py"):
        if not Path(words[0]).is_file():
            raise ConfigError(
                f"there is no script {words[0]!r} in {os.getcwd()}: give its path"
            )
        return (sys.executable, *words)
    if shutil.which(words[0], path=env.get("PATH")) is None:
        raise ConfigError(_missing(words[0]))
    return tuple(words)


def _missing(program: str) -> str:
    if Path(program).is_file():
        return (
            f"{program!r} is a file but no program: make it one by chmod +x and give its path"
            " with a '/', or write 'python' before a Python file"
        )
    return (
        f"there is no program {program!r}, by its path or in PATH; a Python file ends in .py,"
        " the name of a module comes after -m"
    )


def _check_module(names: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise ConfigError unless Python would find the module, as Python itself tells."""
    if not names or names[0].endswith(".py"):
        raise ConfigError("-m takes the name of a module, without '.py': -m package.module")
    name = names[0]
    done = subprocess.run(
        [sys.executable, "-c", FIND, name],
        env=dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == NO_MAIN:
        raise ConfigError(f"the package {name!r} has no __main__: name one of its modules")
    if done.returncode:
        reason = (done.stderr.splitlines() or ["it is not there"])[-1]
        raise ConfigError(
            f"no module {name!r} is installed, in PYTHONPATH or in {os.getcwd()} ({reason}):"
            " start from the folder that holds it"
        )
