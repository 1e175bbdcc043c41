"""Gaps of zero bytes are removed from append-only files; damage of any other kind is left to the
server.
"""

from pathlib import Path

import pytest

from sparkstorm.extensions.embedded.append_only_file import close_gaps


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(
        b"$%d\r\n%s\r\n" % (len(word), word) for word in words
    )


# a value of zeros and of what looks like a command
FIRST = command(b"SET", b"k", b"\0\0\0*1\r\n$1\r\n\0")
SECOND = command(b"MULTI") + command(b"SET", b"", b"v") + command(b"EXEC")
TIME = b"#TS:1790000000\r\n"


@pytest.mark.parametrize(
    ("written", "whole"),
    [
        ([FIRST, b"\0", SECOND], [FIRST, SECOND]),
        ([FIRST, b"\0" * 5_000_000, SECOND, b"\0" * 3, FIRST], [FIRST, SECOND, FIRST]),
        ([b"\0\0", FIRST], [FIRST]),
        ([TIME, FIRST, b"\0", TIME, SECOND], [TIME, FIRST, TIME, SECOND]),
        *([[FIRST, b"\0", SECOND[:cut]], [FIRST, SECOND[:cut]]] for cut in range(1, len(SECOND))),
    ],
)
def test_gaps_go_and_nothing_else(written: list[bytes], whole: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "appendonly.aof.2.incr.aof"
    path.write_bytes(b"".join(written))
    path.chmod(0o640)
    assert close_gaps(path) == len(b"".join(written)) - len(b"".join(whole))
    assert path.read_bytes() == b"".join(whole)
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        FIRST + SECOND,
        FIRST + SECOND + b"\0" * 9,
        FIRST + b"\0" + SECOND + b"\0",
        FIRST + b"\0\0garbage" + SECOND,
        FIRST + b"\xff" + SECOND,
        FIRST + b"\0*x\r\n" + SECOND,
        FIRST + b"\0*1\r\n+OK\r\n" + SECOND,
        FIRST + b"\0*1\r\n$99999999999999999999\r\n" + SECOND,
        FIRST + b"\0*1\r\n*1\r\n" + SECOND,
    ],
)
def test_a_file_that_is_damaged_otherwise_is_left_as_it_is(damaged: bytes, tmp_path: Path) -> None:
    path = tmp_path / "appendonly.aof.2.incr.aof"
    path.write_bytes(damaged)
    assert close_gaps(path) == 0
    assert path.read_bytes() == damaged
