"""Search for a Java runtime of 17 or newer, and its installation where Debian's packages may be
used.

`python -m sparkstorm.extensions.embedded` prints the program's path, or with `--home` the folder that
JAVA_HOME should name; with `--install` it first installs one where none is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkstorm.common.errors import EmbeddedServerError

OLDEST_VERSION = 17
# a release's own: Debian 12 has 17 alone, Debian 13 has 21 and 25 and no 17
DEBIAN_PACKAGE = "default-jre-headless"
_ADVICE = f"install one (Debian: apt-get install {DEBIAN_PACKAGE}) or set JAVA_HOME to it"


def find_java(environ: Mapping[str, str] | None = None) -> str:
    """Path of the `java` program of JAVA_HOME, else of PATH, that is 17 or newer.

    Raises EmbeddedServerError that names what was found and what to install.
    """
    environ = os.environ if environ is None else environ
    seen = []
    for candidate in _candidates(environ):
        version = java_version(candidate)
        if version >= OLDEST_VERSION:
            return candidate
        seen.append(f"{candidate} is version {version}" if version else f"{candidate} does not run")
    programs = "; ".join(seen) or "none was found"
    raise EmbeddedServerError(f"Java {OLDEST_VERSION} or newer is needed ({programs}): {_ADVICE}")


def _candidates(environ: Mapping[str, str]) -> list[str]:
    home = environ.get("JAVA_HOME")
    candidates = [str(Path(home, "bin", "java"))] if home else []
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    return candidates + ([on_path] if on_path else [])


def java_version(program: str) -> int:
    """Major version of a java program; 0 when it cannot be run or has an unknown answer."""
    try:
        output = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else 0


def install_java(*, is_root: bool) -> str:
    """Path of a fitting Java; installs Debian's runtime when there is none, apt exists and root
    asks.
    """
    try:
        return find_java()
    except EmbeddedServerError as error:
        if not is_root or shutil.which("apt-get") is None:
            raise
        print(f"{error}\ninstalling {DEBIAN_PACKAGE} …", file=sys.stderr, flush=True)
    for command in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", DEBIAN_PACKAGE],
    ):
        _apt(command)
    return find_java()


def _apt(command: Sequence[str]) -> None:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise EmbeddedServerError(
            f"{' '.join(command)} failed ({last}); Java {OLDEST_VERSION} or newer is needed: {_ADVICE}"
        )


def main(arguments: Sequence[str]) -> int:
    """Print the runtime's place; return 0, or 1 after a line that names what is missing."""
    try:
        program = (
            install_java(is_root=os.geteuid() == 0) if "--install" in arguments else find_java()
        )
        print(Path(program).resolve().parent.parent if "--home" in arguments else program)
    except EmbeddedServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
