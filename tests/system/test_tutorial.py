"""The tutorial from its first to its last command, beside one `sparkstorm dev`, from the wheel in an
environment that does not see the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparkstorm.embedded.process import free_port
from tests.installed import build, environment, install
from tests.tutorial import INSTALLS, follow

pytestmark = [
    pytest.mark.system,
    # one dev cluster, four pytests and a replay: its time on a machine of its own has to be known
    # before every run pays it
    pytest.mark.skipif(
        "SPARKSTORM_TUTORIAL" not in os.environ,
        reason="SPARKSTORM_TUTORIAL=1 walks through the tutorial",
    ),
]


def test_the_tutorial_ends_with_equal_answers_from_the_wheel(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wheel = build(tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist"))["wheel"]
    # what the installing commands make, but that packages are links to those of this environment
    made = install(wheel, tmp_path / ".venv", "sparkstorm[all]", "pytest")
    follow(
        ["bash"],
        tmp_path,
        environ=environment(made.home, {}),
        left_out=INSTALLS,
        dev_options=f"--web {free_port()}",
    )
