"""The program that a command line names, and the check that it exists.

-m NAME ...    the module or package NAME, run by this Python
FILE.py ...    the file, run by this Python
PROGRAM ...    any other program: its path, or its name in PATH
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
"""Finds a module, importing only its parent packages; the exit code is 0, NO_MODULE or
NO_MAIN."""


def command_of(words: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the program and its arguments.

    Args:
        words: the command line; the first word selects the form above.
        env: environment of the workers; PATH and PYTHONPATH are used.

    Raises:
        ConfigError: no program is given, or it does not exist; nothing was started.
    """
    if not words:
        raise ConfigError("nothing to run: name a script, -m and a module, or a program")
    if words[0] == "-m":
        _check_module(words[1:2], env)
        return (sys.executable, *words)
    if words[0].endswith(".py"):
        if not os.path.isfile(words[0]):  # Path.is_file raises PermissionError
            here = os.readlink("/proc/self/cwd")  # os.getcwd fails in a deleted folder
            raise ConfigError(f"there is no script {words[0]!r} in {here}: give its path")
        return (sys.executable, *words)
    if shutil.which(words[0], path=env.get("PATH")) is None:
        raise ConfigError(_missing(words[0]))
    return tuple(words)


def _missing(program: str) -> str:
    if os.path.isfile(program):
        return (
            f"{program!r} is a file but not executable: run chmod +x on it and give its path"
            " with a '/', or write 'python' before a Python file"
        )
    return (
        f"there is no program {program!r}, neither at this path nor in PATH; a Python file must"
        " end in .py, and a module needs -m before its name"
    )


def _check_module(names: Sequence[str], env: Mapping[str, str]) -> None:
    """Raise ConfigError unless the workers' Python finds the module; ask it in a process."""
    if not names or names[0].endswith(".py"):
        raise ConfigError("-m needs the name of a module, without '.py': -m package.module")
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
