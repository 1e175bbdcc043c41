"""Checks the names of `sparkstorm.testing`: all can be imported, and a module of the package brings
no cluster along.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import sparkstorm.testing


def test_every_name_is_there() -> None:
    assert all(
        getattr(sparkstorm.testing, name).__name__ == name for name in sparkstorm.testing.__all__
    )
    assert {*sparkstorm.testing.__all__} <= {*dir(sparkstorm.testing)}
    with pytest.raises(AttributeError, match="no attribute 'cluster'"):
        _ = sparkstorm.testing.cluster


def test_a_topology_of_the_package_brings_no_cluster_into_its_worker() -> None:
    said = "import sys, tests.chaos.topologies; print('sparkstorm.control_plane.nimbus.nimbus' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", said], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
