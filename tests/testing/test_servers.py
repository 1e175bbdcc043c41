"""Servers of your own: the example of their page, data over a kill, and their end with a killed
starter.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.error

import pytest

from sparkstorm.cli.dev import sample_clicks
from sparkstorm.testing.servers import ObjectStore, PostgresServer
from sparkstorm.testing.servers.processes import descendants, is_gone
from tests import pages
from tests.waiting import wait_until

pytestmark = pytest.mark.nightly

_STARTER = """
import sys
from sparkstorm.testing.servers import PostgresServer

with PostgresServer() as server:
    print(server.pid, server.folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.system
def test_the_example_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    _, passed = pages.run(pages.ROOT / "docs" / "servers.md", monkeypatch)
    assert passed == ["test_clicks_reach_the_table_and_the_bucket"]


@pytest.mark.system
def test_a_server_ends_when_the_process_that_started_it_is_killed() -> None:
    """PostgreSQL, because it runs as another user than its starter: which undoes the kernel's
    signal.
    """
    command = [sys.executable, "-c", _STARTER]
    with subprocess.Popen(
        command, cwd=pages.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid, folder = starter.stdout.readline().split()
        below = descendants(int(pid))
        assert below and not is_gone(int(pid))
        starter.kill()
    wait_until(
        lambda: is_gone(int(pid)) and all(map(is_gone, below)),
        "the end of the server and its children",
    )
    shutil.rmtree(folder)


@pytest.mark.system
def test_postgres_gives_text_where_no_locale_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    with PostgresServer() as postgres:
        assert postgres.run("SELECT 'ä'::text") == [("ä",)]


@pytest.mark.system
def test_buckets_outlive_a_kill_and_end_with_a_temporary_folder() -> None:
    with ObjectStore() as store:
        store.create_bucket("kept")
        store.kill()
        assert store.pid == 0 and not store.answers()
        store.start()
        store.create_bucket("kept")  # again: no error
        with pytest.raises(urllib.error.HTTPError):
            store.create_bucket("ab")  # too short
    assert not store.folder.exists()


def test_sample_clicks_are_the_same_each_time_and_out_of_order_by_less_than_five_seconds() -> None:
    clicks = sample_clicks(3000)
    assert clicks == sample_clicks(3000) and sum(click["page"] == "/shop" for click in clicks) == 3
    newest, behind = 0, 0
    for click in clicks:
        newest = max(newest, click["at_ms"])
        behind = max(behind, newest - click["at_ms"])
    assert 1000 < behind < 5000


def test_a_server_without_its_package_is_refused_with_the_command_that_installs_it() -> None:
    code = "import sys\nsys.modules['moto'] = None\nfrom sparkstorm.testing.servers import ObjectStore\nObjectStore()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=pages.ROOT, capture_output=True, text=True, check=False
    )
    assert "pip install 'sparkstorm[servers]'" in done.stderr.splitlines()[-1], done
