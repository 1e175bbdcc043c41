"""Blobs with names as clients keep them (Storm's `storm blobstore`): made, replaced, listed and
deleted.

The bytes are stored first, under their hash, and then the record of names, in one write: a name
always has whole bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparkstorm.common.clock import Clock
from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.model.assignment import NamedBlob
from sparkstorm.common.model.normalise import conf_from_bytes
from sparkstorm.control_plane.blobs.named import KEY, blob_uses, check_name, check_size
from sparkstorm.control_plane.blobs.store import BlobKind, BlobStore
from sparkstorm.control_plane.cluster.storm_state import StormState


class NamedBlobStore:
    """Blobs of a cluster by name; `by` names the client that stores them."""

    def __init__(self, state: StormState, blobs: BlobStore, clock: Clock, by: str) -> None:
        self._state = state
        self._blobs = blobs
        self._clock = clock
        self._by = by

    def all(self) -> Mapping[str, NamedBlob]:
        """Return what there is, by name."""
        return self._state.read_named_blobs()

    def create(self, name: str, data: bytes) -> NamedBlob:
        """Give bytes a name; InvalidConfigError when it is taken."""
        return self._put(name, data, is_new=True)

    def update(self, name: str, data: bytes) -> NamedBlob:
        """Replace the bytes of a name; the workers that use it have them within a second, as a
        rule.
        """
        return self._put(name, data, is_new=False)

    def delete(self, name: str) -> None:
        """Delete a blob; InvalidConfigError while a topology uses it."""
        users = sorted(
            topology_id
            for topology_id in self._state.topology_ids()
            if name in self._used_by(topology_id)
        )
        if users:
            raise InvalidConfigError(
                f"blob {name} is used by {', '.join(users)} ({KEY}): kill it first"
            )

        def without(blobs: Mapping[str, NamedBlob]) -> Mapping[str, NamedBlob]:
            _require(name, blobs)
            return {blob_name: blob for blob_name, blob in blobs.items() if blob_name != name}

        self._state.change_named_blobs(without)

    def check(self, conf: Mapping[str, object]) -> None:
        """Refuse a topology's configuration that names a blob which is not there: its workers could
        not start.
        """
        uses = blob_uses(conf)
        blobs = self.all() if uses else {}
        if missing := next((use.name for use in uses if use.name not in blobs), None):
            raise InvalidConfigError(
                f"{KEY}: the cluster has no blob {missing}; make it: sparkstorm blob create {missing} FILE"
            )

    def _put(self, name: str, data: bytes, *, is_new: bool) -> NamedBlob:
        check_name(name, "blob")
        check_size(name, len(data))
        _check_free(name, self.all(), is_new)  # before the bytes travel
        now_ms = self._clock.now_ms()
        made = NamedBlob(
            self._blobs.put(data, now_ms, BlobKind.NAMED), len(data), 1, now_ms, self._by
        )

        def changed(blobs: Mapping[str, NamedBlob]) -> Mapping[str, NamedBlob]:
            _check_free(name, blobs, is_new)
            version = 1 if is_new else blobs[name].version + 1
            return {**blobs, name: replace(made, version=version)}

        return self._state.change_named_blobs(changed)[name]

    def _used_by(self, topology_id: str) -> set[str]:
        base = self._state.read_base(topology_id)
        if base is None:
            return set()
        return {
            use.name
            for use in blob_uses(
                conf_from_bytes(self._blobs.get(base.conf_key, BlobKind.CONF), base.conf_key)
            )
        }


def _require(name: str, blobs: Mapping[str, NamedBlob]) -> None:
    if name not in blobs:
        raise InvalidConfigError(
            f"there is no blob {name}; there are {', '.join(sorted(blobs)) or 'none'}"
        )


def _check_free(name: str, blobs: Mapping[str, NamedBlob], is_new: bool) -> None:
    if not is_new:
        _require(name, blobs)
    elif name in blobs:
        raise InvalidConfigError(
            f"blob {name} is there already; replace it with `sparkstorm blob update {name} FILE`"
        )
