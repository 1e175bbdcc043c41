"""Some seeds of `python -m tests.random_topologies`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.random_topologies import GIVEN, on_spark
from tests.replay.test_time_warnings import compared
from tests.replay.test_warnings import kind_of


def test_a_component_that_differs_from_its_replay_is_warned_of() -> None:
    kinds = {kind_of(seed, *compared(seed, *GIVEN)) for seed in range(1006, 1014)}
    assert kinds == {"equal", "equal, warned", "unequal, warned"}


@pytest.mark.system
@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2000, 2001])
def test_spark_replays_them_as_the_local_twin(spark: SparkSession, seed: int) -> None:
    assert on_spark(spark, seed) == []
