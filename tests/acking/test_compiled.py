"""Owns what is promised about compiled kernels: never in the way of a start, never run from a folder others can write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sparkstorm.acking import DictLedger, Kernels, TableLedger, load_kernels, table_ledger
from tests.acking.messages import Ledger, acked, rows_of


def told_by_a_fresh_process(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_does_not_import_numba() -> None:
    assert told_by_a_fresh_process("import sys, sparkstorm.acking; print('numba' in sys.modules)") == "False"


def test_without_numba_there_are_no_kernels_and_the_table_works() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from sparkstorm.acking import TableLedger, load_kernels\n"
        "assert load_kernels() is None\n"
        "ledger = TableLedger()\n"
        "print(ledger.apply(([1], [5], [7]), ([1], [5])).acked_tasks.tolist())"
    )
    assert told_by_a_fresh_process(code) == "[7]"


_HITS = (
    "import sys; from pathlib import Path; from sparkstorm.acking import load_kernels\n"
    "print(sum(sum(kernel.stats.cache_hits.values()) for kernel in load_kernels(Path(sys.argv[1]))))"
)


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    folder = tmp_path / "new" / "kernels"
    assert told_by_a_fresh_process(_HITS, str(folder)) == "0"
    assert told_by_a_fresh_process(_HITS, str(folder)) == "3"
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path, mode: int) -> None:
    pytest.importorskip("numba")
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    assert load_kernels(folder) is not None
    assert os.listdir(folder) == []


@pytest.mark.slow
def test_a_link_or_file_in_the_folders_place_is_not_used(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(target)
    (tmp_path / "file").write_text("")
    assert load_kernels(link) is not None
    assert load_kernels(tmp_path / "file") is not None
    assert list(target.iterdir()) == []


@pytest.mark.slow
def test_a_ledger_adopts_kernels_in_the_middle_of_its_work(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_ledger, "_COLUMNS_FROM", 10)
    rng = np.random.default_rng(4)
    table, plain = TableLedger(), DictLedger()
    ledgers: tuple[Ledger, Ledger] = (table, plain)
    waiting = np.empty(0, np.int64)
    for epoch in range(60):
        if epoch == 30:
            table.adopt(kernels)
        begun = rng.integers(1, 1 << 62, int(rng.integers(0, 400)))
        waiting = rng.permutation(np.concatenate((waiting, begun)))
        ended, waiting = np.split(waiting, [int(rng.integers(0, len(waiting) + 1))])
        told = [acked(ledger.apply((begun, begun, np.full(len(begun), 2)), (ended, ended))) for ledger in ledgers]
        assert told[0] == told[1] == sorted((root, 2) for root in ended.tolist())
        assert len(table.take_delta()) == len(plain.take_delta())
    assert rows_of(table) == rows_of(plain)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_open_root_costs_at_most_what_is_promised(kernels: Kernels, compiled: bool) -> None:
    ledger = TableLedger(kernels) if compiled else TableLedger()
    promised = 32 if compiled else 45
    roots = np.random.default_rng(2).integers(1, 1 << 62, 100_000)
    for part in np.split(roots, 100):
        ledger.apply((part, part, np.full(len(part), 2)))
        ledger.take_delta()
        if len(ledger) >= 10_000:
            assert ledger.bytes_per_root() <= promised
    for part in np.split(roots, 100):
        ledger.apply(acks=(part, part))
        ledger.take_delta()
    ledger.rotate()
    assert len(ledger) == 0
    ledger.apply(([1], [2], [3]))
    assert ledger.bytes_per_root() < 4000  # memory is given back
