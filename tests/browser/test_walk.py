"""The walk through the page in a real browser, where one is installed and it is asked for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from shutil import which

import pytest

from tests.browser.__main__ import BROWSERS

_MISSING = [
    *([] if any(map(which, BROWSERS)) else ["Chromium"]),
    *(
        name
        for name in ("playwright", "axe_playwright_python")
        if importlib.util.find_spec(name) is None
    ),
]


@pytest.mark.skipif(
    os.environ.get("SPARKSTORM_BROWSER") != "1",
    reason="a browser takes minutes: SPARKSTORM_BROWSER=1 asks for it",
)
@pytest.mark.skipif(bool(_MISSING), reason=f"not installed here: {', '.join(_MISSING)}")
def test_every_screen_is_reached_by_keyboard_and_clean() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.browser"], capture_output=True, text=True, timeout=1_500
    )
    assert done.returncode == 0, done.stdout + done.stderr
