"""Shapes of problems: small clusters that reach rare branches, and wide ones as users of the form
may write them.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.conformance.problems import GENERATORS
from benchmarks.conformance.wide import default, even, isolation, multitenant, resource_aware
from benchmarks.conformance.wide_blacklist import blacklist
from benchmarks.conformance.wide_jstorm import jstorm

Problem = dict[str, Any]

WIDE: dict[str, Callable[[Random], Problem]] = {
    "even": even,
    "default": default,
    "isolation": isolation,
    "multitenant": multitenant,
    "resource-aware": resource_aware,
    "blacklist": blacklist,
    "jstorm": jstorm,
}
SHAPES = {"small": GENERATORS, "wide": WIDE}


def generate(scheduler: str, seed: int, count: int, shape: str = "small") -> list[Problem]:
    """Return a number of problems; the same ones for the same seed."""
    stem = scheduler if shape == "small" else f"{shape}-{scheduler}"
    return [SHAPES[shape][scheduler](Random(f"{stem}-{seed}-{index}")) for index in range(count)]
