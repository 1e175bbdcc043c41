"""Another user of the machine, without any credential: it asks ports, files and processes of a run
for what they hold.

Run as root by its path (`python -I -S other_user.py JSON`): it becomes user 65534 when its imports
are done, because that user may not be able to start this interpreter. The argument names
`addresses`, `pids`, `folders` and `files` to try; the answer, one JSON object, has what it got:
`blocks` and `streams` from Spark and `read` files in hexadecimal, `environ` and `memory` (pids that
let it look) and `commands` (command lines by pid).
"""

import encodings.idna  # noqa: F401 - sockets import it when they look a name up, and then it cannot be read any more
import json
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHUNK_REQUEST = 0
CHUNK_SUCCESS = 1
RPC_REQUEST = 3
RPC_RESPONSE = 4
STREAM_REQUEST = 6
STREAM_RESPONSE = 7
MOST_BLOCKS = 6
MOST_BYTES = 1 << 24
NOBODY = 65534


def fetch_block(address: tuple[str, int], block: str) -> bytes:
    """A block of a block manager, as executors fetch it: OpenBlocks, then the first chunk of the
    stream that it names.
    """
    with socket.create_connection(address, timeout=1) as line:
        wanted = b"\x00" + _text("app") + _text("driver") + struct.pack(">i", 1) + _text(block)
        kind, answer = _exchange(line, RPC_REQUEST, struct.pack(">qi", 1, len(wanted)) + wanted)
        if kind != RPC_RESPONSE:
            return b""
        stream = struct.unpack(">q", answer[13:21])[0]
        kind, chunk = _exchange(line, CHUNK_REQUEST, struct.pack(">qi", stream, 0))
        return chunk if kind == CHUNK_SUCCESS else b""


def fetch_stream(address: tuple[str, int], name: str) -> bytes:
    """A file that the driver's RPC port serves."""
    with socket.create_connection(address, timeout=1) as line:
        kind, answer = _exchange(line, STREAM_REQUEST, _text(name))
        if kind != STREAM_RESPONSE:
            return b""
        at = 4 + struct.unpack(">i", answer[:4])[0]
        return _read(line, struct.unpack(">q", answer[at : at + 8])[0])


def _text(value: str) -> bytes:
    return struct.pack(">i", len(value.encode())) + value.encode()


def _exchange(line: socket.socket, kind: int, body: bytes) -> tuple[int, bytes]:
    """Send a frame of Spark's transport (length, type, body); type and body of its answer."""
    line.sendall(struct.pack(">qb", 9 + len(body), kind) + body)
    length, kind = struct.unpack(">qb", _read(line, 9))
    return kind, _read(line, length - 9)


def _read(line: socket.socket, count: int) -> bytes:
    if not 0 <= count < MOST_BYTES:
        raise OSError("no frame of Spark's")
    got = b""
    while len(got) < count:
        part = line.recv(count - len(got))
        if not part:
            raise OSError("closed")
        got += part
    return got


def attempt(call: Callable[..., bytes], *arguments: Any) -> bytes:
    """The bytes that a call brings, none when it is refused; TimeoutError passes."""
    try:
        return call(*arguments)
    except TimeoutError:
        raise
    except (OSError, struct.error):
        return b""


def from_spark(asked: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Blocks and streams that any of the addresses hands out."""
    blocks, streams = {}, {}
    for address in map(tuple, asked["addresses"]):
        try:
            for name in (f"broadcast_{number}_piece0" for number in range(MOST_BLOCKS)):
                blocks[f"{address} {name}"] = attempt(fetch_block, address, name).hex()
            for name in asked["files"]:
                streams[f"{address} {name}"] = attempt(fetch_stream, address, name).hex()
        except TimeoutError:  # no server of Spark's
            continue
    return {
        "blocks": {k: v for k, v in blocks.items() if v},
        "streams": {k: v for k, v in streams.items() if v},
    }


def from_files(folders: list[str]) -> dict[str, str]:
    """Every file below the folders that opens."""
    found: Iterator[Path] = (
        Path(where, name)
        for folder in folders
        for where, _, names in os.walk(folder)
        for name in names
    )
    return {str(path): data.hex() for path in found if (data := attempt(path.read_bytes))}


def from_processes(pids: list[int]) -> dict[str, Any]:
    """Command lines, and the processes whose environment or memory opens."""
    command = {
        pid: attempt(Path(f"/proc/{pid}/cmdline").read_bytes).replace(b"\0", b" ").decode("latin-1")
        for pid in pids
    }
    environ = [pid for pid in pids if attempt(Path(f"/proc/{pid}/environ").read_bytes)]
    memory = [pid for pid in pids if attempt(Path(f"/proc/{pid}/maps").read_bytes)]
    return {"commands": command, "environ": environ, "memory": memory}


if __name__ == "__main__":
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    wish = json.loads(sys.argv[1])
    print(
        json.dumps(
            {
                **from_spark(wish),
                "read": from_files(wish["folders"]),
                **from_processes(wish["pids"]),
            }
        )
    )
