"""One version of a bolt in its own process: steps through rows that come on standard input,
for a comparison of versions.

`python -m sparkstorm.extensions.recording.stepping.step_server CODE_FILE COMPONENT` exchanges frames, each four
bytes of length and MessagePack. First comes the configuration; then `["begin", task_index, state,
cells of windows or null]` (answered by an empty list) and `["rows", [component, stream, values,
at_ms] ...]`, answered by a list of outcomes, one per row. An error of the code ends the process
with one sentence on standard error. Two versions are never opened in one process: their modules
have the same names.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO

from sparkstorm.common.errors import SparkStormError
from sparkstorm.common.model.topology import Topology
from sparkstorm.common.model.values.codec import Codec
from sparkstorm.data_plane.user_code.topology_code import open_topology
from sparkstorm.extensions.recording.stepping.stepper import Stepper
from sparkstorm.extensions.recording.versions import read_frame, write_frame

_REFUSED = 3


def serve(code: bytes, component: str, source: IO[bytes], sink: IO[bytes], folder: Path) -> None:
    """Answer frames until they end."""
    codec = Codec()
    topology, make_instance = open_topology(
        code, hashlib.sha256(code).hexdigest(), folder / "modules.zip"
    )
    with_bolts = Topology(
        {
            c.id: replace(c, instance=make_instance(c.id) if c.kind == "bolt" else None)
            for c in topology
        }
    )
    conf = read_frame(source, codec)
    stepper = Stepper(with_bolts, component, conf=conf, cells=())
    while True:
        try:
            kind, *rest = read_frame(source, codec)
        except EOFError:
            return
        if kind == "begin":
            index, pairs, cells = rest
            state = {tuple(key) if isinstance(key, list) else key: value for key, value in pairs}
            stepper = Stepper(
                with_bolts, component, conf=conf, state=state, task_index=index, cells=cells
            )
            write_frame(sink, codec, [])
            continue
        outcomes = [
            stepper.outcome(values, sender, stream, at_ms)
            for sender, stream, values, at_ms in rest[0]
        ]
        write_frame(sink, codec, outcomes)


def main(arguments: list[str]) -> int:
    """Serve the code of a file; its exit status."""
    sink = sys.stdout.buffer
    # What components print is no answer.
    sys.stdout = sys.stderr
    with tempfile.TemporaryDirectory() as folder:
        try:
            serve(
                Path(arguments[0]).read_bytes(), arguments[1], sys.stdin.buffer, sink, Path(folder)
            )
        except SparkStormError as error:
            print(str(error).replace("\n", " "), file=sys.stderr)
            return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
