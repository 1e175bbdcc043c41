"""Settings of autoscaling, by topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sparkstorm.common.errors import InvalidConfigError
from sparkstorm.common.settings import Settings
from sparkstorm.extensions.autoscale.model import Bounds


@dataclass(frozen=True, slots=True)
class ModeSettings(Settings):
    """Whether Nimbus scales a topology: True, False or "advise"."""

    mode: Annotated[bool | str, "topology.autoscale"]


@dataclass(frozen=True, slots=True)
class AutoscaleSettings(Settings):
    """Limits and times."""

    min_workers: Annotated[int, "topology.autoscale.min.workers"]
    max_workers: Annotated[int | None, "topology.autoscale.max.workers"]
    low: Annotated[float, "topology.autoscale.utilization.min"]
    high: Annotated[float, "topology.autoscale.utilization.max"]
    catch_up_ms: Annotated[int, "topology.autoscale.catch.up.secs"]
    grace_ms: Annotated[int, "topology.autoscale.grace.secs"]

    def bounds(self, name: str) -> Bounds:
        """Return the limits of a plan; InvalidConfigError where they contradict each other."""
        if self.max_workers is not None and self.max_workers < self.min_workers:
            raise InvalidConfigError(
                f"{name}: topology.autoscale.max.workers, {self.max_workers}, is less than "
                f"topology.autoscale.min.workers, {self.min_workers}"
            )
        # Within a narrower band, two executors in place of one are below it at once.
        if 2 * self.low > self.high:
            raise InvalidConfigError(
                f"{name}: topology.autoscale.utilization.min, {self.low}, is more than half of "
                f"topology.autoscale.utilization.max, {self.high}"
            )
        return Bounds(
            self.min_workers, self.max_workers, self.low, self.high, self.catch_up_ms / 1000
        )
