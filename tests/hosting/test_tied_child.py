"""A child that a driver starts ends with it, also when the driver is killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_CHILD = """
import signal
from sparkstorm.driver.hosting.tied_child import end_with_input
end_with_input()
print('up', flush=True)
signal.pause()
"""
_PARENT = f"""
import signal, sys
from sparkstorm.driver.hosting.tied_child import tied
with tied([sys.executable, "-c", {_CHILD!r}]):
    signal.pause()
"""


def test_a_killed_driver_takes_its_page_with_it() -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        ready, _, _ = select.select([parent.stdout], [], [], 20)
        # end of file: the child, which has it too, is gone
        assert ready and parent.stdout.read() == b""
