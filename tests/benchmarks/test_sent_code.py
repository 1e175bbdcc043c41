"""The code that a replay of a benchmark sends."""

from __future__ import annotations

import io
import zipfile

from sparkstorm.data_plane.user_code.local_modules import pack_sources


def test_benchmarks_send_no_tests() -> None:
    """A replay packs every local package that its own imports: tests would be nine tenths of it."""
    with zipfile.ZipFile(io.BytesIO(pack_sources(["benchmarks"]))) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"benchmarks"}
