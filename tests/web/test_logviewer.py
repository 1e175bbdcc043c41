"""Storm's log viewer: parts, searches and names of logs, and what is asked of it by path."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.web.served import Served, served

LINES = b"".join(b"line %03d of words\n" % number for number in range(100))
BASE = "/api/v1"


def slot_of(at: Served) -> str:
    return min(at.run.sampler.topology("words").workers)


def test_the_link_of_every_worker_is_served() -> None:
    with served() as at:
        at.run.feed(5)
        at.logs |= dict.fromkeys(at.run.sampler.topology("words").workers, LINES)
        links = [
            each["workerLogLink"]
            for each in at.client.get(f"{BASE}/topology/{at.id}").json()["workers"]
        ]
        assert len(links) == 2
        for link in links:
            answer = at.client.get(link)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/html")
            assert "line 099 of words" in answer.text and "1,800 that are kept" in answer.text


def test_a_part_of_a_log_is_what_was_asked_for() -> None:
    with served() as at:
        slot = slot_of(at)
        at.logs[slot] = LINES
        file = {"file": f"{at.id}/{slot}/worker.log"}
        part = at.client.get(f"{BASE}/log", params={**file, "start": 18, "length": 36}).text
        assert "line 001" in part
        assert "line 002" in part
        assert "line 000" not in part
        assert "line 003" not in part
        found = at.client.get(f"{BASE}/log", params={**file, "grep": "042"}).text
        assert "line 042" in found and "line 041" not in found
        # as Storm names it, by the port alone
        answer = at.client.get(f"{BASE}/log", params={"file": f"{at.id}/6700/worker.log"})
        # two workers have it
        assert answer.status_code == 404 and "node1:6700, node2:6700" in answer.text
        whole = at.client.get(f"{BASE}/download", params=file)
        assert whole.content == LINES
        assert whole.headers["content-disposition"].startswith("attachment;")


def test_searches_answer_as_storm_does_and_go_on_where_they_ended() -> None:
    with served() as at:
        slot = slot_of(at)
        at.logs[slot] = LINES
        file = f"{at.id}/{slot}/worker.log"
        asked = {"file": file, "search-string": "line 09", "num-matches": "4"}
        first = at.client.get(f"{BASE}/search", params=asked).json()
        assert first["file"] == file
        assert first["isDaemon"] == "no"
        assert first["numMatches"] == 4
        assert len(first["matches"]) == 4
        assert first["matches"][0]["byteOffset"] == 90 * 18
        assert first["matches"][0]["matchString"] == "line 09"
        assert first["matches"][0]["afterString"].startswith("0 of words\nline 091")
        assert at.client.get(first["matches"][0]["logviewerURL"]).status_code == 200
        rest = at.client.get(
            f"{BASE}/search",
            params={**asked, "start-byte-offset": first["nextByteOffset"], "num-matches": "10"},
        )
        assert rest.json()["numMatches"] == 6 and "nextByteOffset" not in rest.json()
        port = slot.rpartition(":")[2]
        for asked_port, count in ((port, 3), ("*", 3), ("1", 0)):
            deep = at.client.get(
                f"{BASE}/deepSearch/{at.id}",
                params={"search-string": "01", "num-matches": 3, "port": asked_port},
            )
            assert deep.json()["numberOfMatches"] == count
            assert [each["fileName"] for each in deep.json()["matches"]] == [file][: count or 0]
        names = at.client.get(f"{BASE}/listLogs", params={"topoId": at.id, "port": port}).json()
        assert (
            len(names) == 2 and file in names and file in at.client.get(f"{BASE}/searchLogs").json()
        )


@pytest.mark.sampled
@pytest.mark.parametrize(
    "file",
    [
        "",
        "worker.log",
        "../../../etc/passwd",
        "{id}/../../etc/passwd",
        "{id}/{slot}/../worker.log",
        "{id}/{slot}/worker.log/..",
        "{id}/{slot}/worker.log\x00.txt",
        "{id}/{slot}//etc/passwd",
        "/etc/passwd",
        "..\\..\\etc\\passwd",
        "{id}/nobody:1/worker.log",
        "{id}/*/worker.log",
        "{id}/{slot}]:x/worker.log",
        "words/{slot}/worker.log",
        "nobody-1-1/{slot}/worker.log",
    ],
)
@pytest.mark.parametrize("route", ["log", "download", "search"])
def test_no_path_leads_out_of_the_kept_logs(file: str, route: str) -> None:
    with served() as at:
        at.logs[slot_of(at)] = LINES
        name = file.format(id=at.id, slot=slot_of(at))
        answer = at.client.get(f"{BASE}/{route}?file={quote(name, safe='')}&search-string=line")
        assert answer.status_code == 404 and answer.json()["errorMessage"], answer.text
        assert "root:" not in answer.text and "line 0" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/log/../../../etc/passwd",
        "/log/%2e%2e/%2e%2e/etc/passwd",
        "/deepSearch/..%2f..%2fetc%2fpasswd",
    ],
)
def test_no_route_takes_a_path_of_files(path: str) -> None:
    with served() as at:
        answer = at.client.get(f"{BASE}{path}?search-string=root")
        assert answer.status_code == 404 and "root:" not in answer.text


def test_what_a_worker_prints_is_text_on_the_page() -> None:
    with served() as at:
        slot = slot_of(at)
        at.logs[slot] = b"<script>alert(1)</script>\x1b[31m\xff\n"
        text = at.client.get(
            f"{BASE}/log", params={"file": f"{at.id}/{slot}/worker.log", "grep": '"><script>'}
        ).text
        assert "<script>" not in text
        text = at.client.get(f"{BASE}/log", params={"file": f"{at.id}/{slot}/worker.log"}).text
        assert "&lt;script&gt;alert(1)" in text
        assert "\\x1b[31m" in text
        assert "\x1b" not in text
        assert "<script>" not in text


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"search-string": ""}, "search-string"),
        ({"search-string": "x" * 2_000}, "search-string"),
        ({"search-string": "x", "num-matches": "0"}, "num-matches"),
        ({"search-string": "x", "start-byte-offset": "-1"}, "start-byte-offset"),
        ({"search-string": "x", "start-byte-offset": "٣"}, "start-byte-offset"),
    ],
)
def test_a_wrong_search_gets_a_sentence(asked: dict[str, str], words: str) -> None:
    with served() as at:
        at.logs[slot_of(at)] = LINES
        answer = at.client.get(
            f"{BASE}/search", params={"file": f"{at.id}/{slot_of(at)}/worker.log", **asked}
        )
        assert answer.status_code == 400 and words in answer.json()["errorMessage"]


def test_a_read_only_server_shows_no_logs() -> None:
    with served(is_read_only=True) as at:
        at.logs[slot_of(at)] = LINES
        for route in ("log", "download", "search", "listLogs", "searchLogs", f"deepSearch/{at.id}"):
            answer = at.client.get(
                f"{BASE}/{route}",
                params={"file": f"{at.id}/{slot_of(at)}/worker.log", "search-string": "line"},
            )
            assert answer.status_code == 403
            assert "logs may hold secrets" in answer.json()["errorMessage"]
