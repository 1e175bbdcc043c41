"""The compiled core's tests and hostile calls under AddressSanitizer and UndefinedBehaviorSanitizer
(`make asan`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from sparkstorm.common.model import compiled

ROOT = Path(__file__).parents[2]
SOURCES = [
    str(Path(compiled.__file__).with_name(name))
    for name in (
        "_core.c",
        "_values.c",
        "_frames.c",
        "_msgpack.c",
        "_hash.c",
        "_extensions.c",
    )
]
TESTS = [
    "tests/executor/test_compiled.py",
    "tests/executor/test_hostile_core.py",
    "tests/model/test_codec.py",
    "tests/model/test_packing.py",
    "tests/grouping/test_hashing.py::test_the_core_hashes_as_its_twin",
    "tests/grouping/test_hashing.py::test_odd_values_are_hashed_alike_one_by_one_and_as_a_list_of_keys",
]
FLAGS = [
    "-shared",
    "-fPIC",
    "-O1",
    "-g",
    "-Wall",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
]


@pytest.fixture(scope="module")
def library() -> str:
    """Return gcc's AddressSanitizer, which is to be loaded before Python."""
    gcc, header = shutil.which("gcc"), Path(sysconfig.get_path("include"), "Python.h")
    if gcc is None or not header.exists():
        pytest.skip("the sanitizers need gcc and Python's headers, which are not here")
    found = subprocess.run(
        [gcc, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("this gcc comes without AddressSanitizer (libasan.so)")
    return found


def build(sources: list[str], folder: Path) -> Path:
    built = folder / "_core.so"
    include = f"-I{sysconfig.get_path('include')}"
    said = subprocess.run(
        ["gcc", *FLAGS, include, *sources, "-o", str(built)], capture_output=True, text=True
    )
    assert said.returncode == 0 and "warning" not in said.stderr, said.stderr
    return built


def run(core: Path, library: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on that core; Python takes memory block by block, so that an overrun of any is
    seen.
    """
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "SPARKSTORM_SANITIZED_CORE": str(core),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-s",
        "-p",
        "tests.executor.sanitized",
    ]
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.nightly
def test_the_core_and_its_hostile_calls_run_clean(library: str, tmp_path: Path) -> None:
    left_out = (  # it unloads the core; and hundreds of values that never leave Python's own code
        f"{TESTS[0]}::test_it_can_be_left_out",
        f"{TESTS[3]}::test_what_normalise_returns_is_what_the_other_side_reads",
    )
    said = run(
        build(SOURCES, tmp_path), library, *TESTS, *(f"--deselect={each}" for each in left_out)
    )
    assert said.returncode == 0 and "skipped" not in said.stdout, (
        f"{said.stdout[-6000:]}\n{said.stderr[-6000:]}"
    )


@pytest.mark.nightly
def test_a_check_that_is_missing_is_seen(library: str, tmp_path: Path) -> None:
    """Without the look at the lengths of runs the same tests end in a report of the sanitizer."""
    checked = "if (PySequence_Fast_GET_SIZE(roots) != PySequence_Fast_GET_SIZE(lengths)) {"
    frames = next(source for source in SOURCES if source.endswith("_frames.c"))
    text = Path(frames).read_text()
    assert text.count(checked) == 1
    broken = tmp_path / "_frames.c"
    broken.write_text(text.replace(checked, "if (0) {"))
    said = run(
        build([str(broken) if source == frames else source for source in SOURCES], tmp_path),
        library,
        TESTS[1],
        "-k",
        "last_rows",
    )
    assert said.returncode != 0
    assert (
        "AddressSanitizer" in said.stderr + said.stdout
        or "runtime error" in said.stderr + said.stdout
    )
