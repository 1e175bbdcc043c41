"""Racks of hosts from a file of lines `HOST RACK`, as Hadoop's net.topology.table.file.name has
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sparkstorm.common.errors import InvalidConfigError, show

_KEY: Final = "sparkstorm.racks.file"
_MOST_BYTES = 4 << 20  # some 100,000 hosts


def read_racks(name: str | None) -> Mapping[str, str]:
    """Return the rack of each host; empty without a file. InvalidConfigError names the file and the
    line.
    """
    if not name:
        return {}
    try:
        with Path(name).expanduser().open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise InvalidConfigError(f"{_KEY}: {name} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise InvalidConfigError(
            f"{_KEY}: {name} is larger than {_MOST_BYTES} bytes: this is no table of racks"
        )
    try:
        return _racks_of(data.decode(), name)
    except UnicodeDecodeError:
        raise InvalidConfigError(f"{_KEY}: {name} is not UTF-8 text") from None


def _racks_of(text: str, name: str) -> Mapping[str, str]:
    rack_by_host: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise InvalidConfigError(
                f"{_KEY}: {name}, line {number}: expected a host and its rack, got {show(line.strip())}"
            )
        if rack_by_host.setdefault(words[0], words[1]) != words[1]:
            raise InvalidConfigError(
                f"{_KEY}: {name}, line {number}: {words[0]} is in {rack_by_host[words[0]]} and in {words[1]}"
            )
    return rack_by_host
