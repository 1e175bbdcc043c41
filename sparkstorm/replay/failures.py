"""Owns finding our own sentence in what Spark wraps around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from sparkstorm.errors import ReplayFailedError

_SENTENCE = re.compile(r"(?:ReplayFailedError|WorkerFailedError|InvalidTopologyError): (.+)")


@contextmanager
def unwrapped() -> Iterator[None]:
    """An action of Spark in here raises ReplayFailedError with our sentence when it failed for our reason."""
    try:
        yield
    except PySparkException as error:
        found = _SENTENCE.search(str(error))
        if found is None:
            raise
        raise ReplayFailedError(found.group(1)) from error
