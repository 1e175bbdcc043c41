"""A slow wire: passes Ethernet frames between a port and the bridge later than they came, and loses
some.

Kernels without the traffic control `netem` delay nothing by themselves.
`wire.py PORT NAME MILLISECONDS LOSS`, inside the bridge's namespace: PORT becomes the only port of
a second bridge, and two tap devices join that one with the first.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from itertools import count

_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000
_MOST_BYTES = 65_536


def tap(name: str) -> int:
    """Make a tap device and return its descriptor; frames to it are whole ones, with checksums, of
    its MTU at most.
    """
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP_WITHOUT_HEADER))
    return descriptor


def ip(*words: str) -> None:
    """Configure a device."""
    subprocess.run(["ip", *words], check=True)


def main(port: str, name: str, milliseconds: float, loss: float) -> None:
    """Pass frames on until killed."""
    near, far, bridge = f"{name}n", f"{name}f", f"{name}b"
    ends = {(a := tap(near)): (b := tap(far)), b: a}
    ip("link", "add", bridge, "type", "bridge")
    for device, master in ((near, bridge), (far, "br0"), (port, bridge)):
        ip("link", "set", device, "master", master, "up")
    ip("link", "set", bridge, "up")
    print("up", flush=True)
    numbers, chance = count(), random.Random(0)
    waiting: list[tuple[float, int, int, bytes]] = []
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for end in select.select(list(ends), [], [], pause)[0]:
            due = time.monotonic() + milliseconds / 1000
            while (frame := _read(end)) is not None:
                if chance.random() >= loss:
                    heapq.heappush(waiting, (due, next(numbers), ends[end], frame))
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, end, frame = heapq.heappop(waiting)
            try:
                os.write(end, frame)
            except OSError:
                continue  # a full queue loses frames, as wires do


def _read(end: int) -> bytes | None:
    try:
        return os.read(end, _MOST_BYTES)
    except BlockingIOError:
        return None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
