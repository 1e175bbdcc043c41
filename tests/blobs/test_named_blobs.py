"""Blobs with names: their settings, their versions on a host, and topologies that use them while
they change.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkstorm.api import BasicBolt, BasicOutputCollector, TopologyBuilder, TopologyContext, Tuple
from sparkstorm.common.errors import InvalidConfigError, WorkerFailedError
from sparkstorm.common.model.topology import Topology
from sparkstorm.control_plane.blobs.named import BlobUse, blob_uses, check_size, lay_out
from sparkstorm.control_plane.blobs.store import BlobKind
from sparkstorm.control_plane.cluster import paths
from sparkstorm.data_plane.user_code import attachments
from sparkstorm.replay import replay_locally
from sparkstorm.testing import CaptureBolt, FeederSpout, LocalCluster
from tests.nimbus.nimbus_bench import Bench

RULES = BlobUse("rules", "rules")


# -- settings


def test_a_blob_has_its_own_name_on_the_hosts_unless_another_is_given() -> None:
    given = {
        "rules": None,
        "model.bin": {},
        "tables": {"localname": "t", "uncompress": True, "workerRestart": True},
    }
    assert blob_uses({"topology.blobstore.map": given}) == (
        BlobUse("rules", "rules"),
        BlobUse("model.bin", "model.bin"),
        BlobUse("tables", "t", unpacks=True, restarts=True),
    )
    assert blob_uses({}) == ()


REFUSED: dict[str, tuple[Any, str]] = {
    "no mapping": ([1], "topology.blobstore.map: expected a map, got a list, [1]"),
    "a path as a name": ({"a/b": {}}, "topology.blobstore.map: blob 'a/b': use up to 150 letters"),
    "a hidden name": ({".hidden": {}}, "use up to 150 letters"),
    "a path as a localname": (
        {"a": {"localname": "../../etc/passwd"}},
        "localname '../../etc/passwd': use up to 150 letters",
    ),
    "an empty localname": ({"a": {"localname": ""}}, "localname '': use"),
    "an unknown option": ({"a": {"local": "b"}}, "a has {'local': 'b'}; it may have localname"),
    "an option of another type": ({"a": {"uncompress": "yes"}}, "a has {'uncompress': 'yes'}"),
    "no options": (
        {"a": "b"},
        "a has 'b'; it may have localname (a text), uncompress and workerRestart (true or false)",
    ),
    "one localname twice": (
        {"a": {}, "b": {"localname": "a"}},
        "a and b have the localname a; give one of them another",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_settings_are_refused(case: str) -> None:
    given, said = REFUSED[case]
    with pytest.raises(InvalidConfigError) as refused:
        blob_uses({"topology.blobstore.map": given})
    assert said in str(refused.value)


def test_a_blob_that_is_too_large_for_redis_is_refused_by_its_size() -> None:
    check_size("big", attachments.MAX_BYTES)
    with pytest.raises(InvalidConfigError, match=r"blob big: \d+ bytes are more than 512 MB"):
        check_size("big", attachments.MAX_BYTES + 1)


# -- versions on a host


def put(folder: Path, data: bytes, use: BlobUse = RULES, key: str = "") -> None:
    lay_out(folder, use, key or data.decode(), lambda: data)


def test_a_reader_sees_the_newest_version_and_may_keep_the_one_before(tmp_path: Path) -> None:
    seen = []
    for data in (b"one", b"two", b"three"):
        put(tmp_path, data)
        seen.append((tmp_path / "rules").resolve())
    assert (tmp_path / "rules").read_bytes() == b"three"
    assert [path.exists() for path in seen] == [False, True, True]
    assert seen[1].read_bytes() == b"two"


def test_a_version_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    put(tmp_path, b"one")

    def fetch() -> bytes:
        raise AssertionError("fetched again")

    lay_out(tmp_path, RULES, "one", fetch)
    lay_out(tmp_path, BlobUse("rules", "other"), "one", fetch)
    assert (tmp_path / "other").read_bytes() == b"one"


def zipped(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return packed.getvalue()


def tarred(files: dict[str, bytes], link: str = "") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)
    return packed.getvalue()


UNPACKED = BlobUse("tables", "tables", unpacks=True)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_becomes_a_folder(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path
) -> None:
    put(tmp_path, pack({"a.csv": b"1", "more/b.csv": b"2"}), UNPACKED, "k1")
    assert (tmp_path / "tables" / "more" / "b.csv").read_bytes() == b"2"
    put(tmp_path, pack({"a.csv": b"3"}), UNPACKED, "k2")
    assert sorted(each.name for each in (tmp_path / "tables").iterdir()) == ["a.csv"]
    assert (tmp_path / "tables" / "a.csv").read_bytes() == b"3"


def test_an_archive_can_write_and_link_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "blobs"
    for number, data in enumerate(
        (
            zipped({"../out": b"x", "in": b"y"}),
            tarred({"../out": b"x", "in": b"y"}, link="/etc/passwd"),
        )
    ):
        with pytest.raises(WorkerFailedError, match=r"file '../out', whose name leads out"):
            put(folder, data, UNPACKED, f"k{number}")
    put(folder, tarred({"in": b"y"}, link="/etc/passwd"), UNPACKED, "k2")
    assert sorted(each.name for each in (folder / "tables").iterdir()) == ["in"]
    with pytest.raises(WorkerFailedError, match="leads out of its folder"):
        put(folder, tarred({"/tmp/out": b"x"}), UNPACKED, "k3")
    assert {each.name for each in tmp_path.iterdir()} == {"blobs"}


def test_an_archive_that_is_damaged_or_unpacks_to_too_much_leaves_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, zipped({"a": b"1"}), UNPACKED, "k1")
    with pytest.raises(WorkerFailedError, match="blob tables cannot be unpacked"):
        put(tmp_path, b"PK no archive", UNPACKED, "k2")
    with pytest.raises(WorkerFailedError, match="blob tables cannot be unpacked"):
        put(tmp_path, b"no archive at all", UNPACKED, "k2")
    monkeypatch.setattr(attachments, "_LEAST_BOUND", 1000)
    with pytest.raises(WorkerFailedError, match="blob tables unpacks to more than"):
        put(tmp_path, zipped({"a": b"0" * 1_000_000}), UNPACKED, "k3")
    assert (tmp_path / "tables" / "a").read_bytes() == b"1"
    assert sorted(each.name for each in (tmp_path / ".versions").iterdir()) == ["k1.unpacked"]


# -- topologies that use them


class Reading(BasicBolt):
    """Emits what the blob has now, and what it had when the task was prepared."""

    outputs = ("now", "at_start")

    def prepare(self, conf: Any, context: TopologyContext) -> None:
        self.context = context
        self.at_start = Path(context.blob("rules")).read_text()

    def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit((Path(self.context.blob("rules")).read_text(), self.at_start))


def reading() -> tuple[Topology, FeederSpout, CaptureBolt]:
    spout, capture, builder = FeederSpout(["value"]), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("reading", Reading(), 2, inputs="spout")
    builder.set_bolt("capture", capture, inputs={"reading": "global"})
    return builder.build(), spout, capture


def using(**options: Any) -> dict[str, Any]:
    return {
        "topology.workers": 2,
        "topology.blobstore.map": {"the-rules": {"localname": "rules", **options}},
    }


def fed_once(
    cluster: LocalCluster, spout: FeederSpout, capture: CaptureBolt
) -> set[tuple[Any, ...]]:
    before = len(capture.values)
    for value in range(4):
        spout.feed([value])
    cluster.run_until_idle()
    assert len(capture.values) == before + 4
    return set(capture.values[before:])


def test_a_new_version_reaches_workers_that_run() -> None:
    topology, spout, capture = reading()
    with LocalCluster() as cluster:
        blobs = cluster.service.named_blobs()
        assert blobs.create("the-rules", b"old").version == 1
        cluster.submit(topology, using())
        assert fed_once(cluster, spout, capture) == {("old", "old")}
        assert blobs.update("the-rules", b"new").version == 2
        cluster.advance(seconds=2)
        assert fed_once(cluster, spout, capture) == {("new", "old")}


def test_workers_start_anew_with_a_new_version_where_that_is_asked_for() -> None:
    topology, spout, capture = reading()
    with LocalCluster() as cluster:
        blobs = cluster.service.named_blobs()
        blobs.create("the-rules", b"old")
        cluster.submit(topology, using(workerRestart=True))
        assert fed_once(cluster, spout, capture) == {("old", "old")}
        blobs.update("the-rules", b"new")
        cluster.advance(seconds=10)
        assert fed_once(cluster, spout, capture) == {("new", "new")}
        assert sorted(spout.acked) == list(range(8))


def test_a_version_that_cannot_be_unpacked_leaves_the_one_before_until_it_is_mended() -> None:
    class ReadingFolder(Reading):
        def prepare(self, conf: Any, context: TopologyContext) -> None:
            self.context, self.at_start = context, ""

        def execute(self, tup: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit((Path(self.context.blob("rules"), "a").read_text(), ""))

    spout, capture, builder = FeederSpout(["value"]), CaptureBolt(), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("reading", ReadingFolder(), 2, inputs="spout")
    builder.set_bolt("capture", capture, inputs={"reading": "global"})
    with LocalCluster() as cluster:
        blobs = cluster.service.named_blobs()
        blobs.create("the-rules", zipped({"a": b"one"}))
        cluster.submit(builder.build(), using(uncompress=True))
        assert fed_once(cluster, spout, capture) == {("one", "")}
        blobs.update("the-rules", b"damaged")
        cluster.advance(seconds=5)
        assert fed_once(cluster, spout, capture) == {("one", "")}
        blobs.update("the-rules", zipped({"a": b"two"}))
        cluster.advance(seconds=5)
        assert fed_once(cluster, spout, capture) == {("two", "")}


def test_what_a_topology_uses_must_be_there_and_stays_while_it_runs() -> None:
    topology, _, _ = reading()
    with LocalCluster() as cluster:
        blobs = cluster.service.named_blobs()
        sentence = r"no blob the-rules; make it: sparkstorm blob create the-rules FILE"
        with pytest.raises(InvalidConfigError, match=sentence):
            cluster.submit(topology, using())
        with pytest.raises(InvalidConfigError, match="there is no blob the-rules; there are none"):
            blobs.update("the-rules", b"x")
        blobs.create("the-rules", b"x")
        with pytest.raises(InvalidConfigError, match="blob the-rules is there already; replace it"):
            blobs.create("the-rules", b"y")
        with pytest.raises(InvalidConfigError, match=r"blob '\.\./x': use up to"):
            blobs.create("../x", b"y")
        topology_id = cluster.submit(topology, using())
        with pytest.raises(InvalidConfigError, match=f"blob the-rules is used by {topology_id}"):
            blobs.delete("the-rules")
        cluster.service.kill(topology_id.rsplit("-", 2)[0], 0)
        cluster.advance(seconds=60)
        blobs.delete("the-rules")
        assert blobs.all() == {}


def test_the_sweep_keeps_the_newest_version_and_deletes_those_before_and_those_that_were_deleted() -> (
    None
):
    bench = Bench()
    blobs = bench.service.named_blobs()
    old = blobs.create("rules", b"old").key
    new = blobs.update("rules", b"new").key
    bench.advance(600)
    assert (bench.blobs.has(old), bench.blobs.get(new, BlobKind.NAMED)) == (False, b"new")
    blobs.delete("rules")
    bench.advance(600)
    assert not bench.blobs.has(new)


def test_a_damaged_record_of_names_stops_the_sweep_of_blobs() -> None:
    bench = Bench()
    key = bench.service.named_blobs().create("rules", b"old").key
    bench.store.put(paths.NAMED_BLOBS, b"damaged")
    bench.advance(600)
    assert bench.blobs.get(key, BlobKind.NAMED) == b"old"


def test_without_a_cluster_a_blob_is_the_file_of_that_name(tmp_path: Path) -> None:
    topology, _, _ = reading()
    (tmp_path / "rules").write_text("of a file")
    conf = {**using(), "topology.files": [str(tmp_path / "rules")]}
    result = replay_locally(topology, {"spout": [[1]]}, conf=conf)["reading"]
    assert result == [("of a file", "of a file")]
