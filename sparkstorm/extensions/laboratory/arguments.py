"""Checks of what callers give the laboratory: InvalidConfigError names the argument. PURE."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, TypeGuard

from sparkstorm.common.errors import InvalidConfigError, show
from sparkstorm.common.model.strict import named_errors, near_name, whole


def checked_whole(number: int, name: str, most: int = 2**31 - 1, least: int = 1) -> int:
    """Return a whole number from `least` to `most`; InvalidConfigError names it where it is none."""
    with named_errors(InvalidConfigError, name):
        return int(whole(least, most)(number))


def is_amount(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number of 0 or more; True and texts are none."""
    return (
        isinstance(value, Real) and not isinstance(value, bool) and 0.0 <= float(value) < math.inf
    )


def check_kind(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise InvalidConfigError where an argument is not of its kind."""
    if not isinstance(value, kind):
        raise InvalidConfigError(f"{name} is to be {what}, not {show(value)}")


def check_conf(conf: object) -> None:
    """Raise InvalidConfigError where settings for one question are no mapping."""
    if conf is not None and not isinstance(conf, Mapping):
        raise InvalidConfigError(f"conf: a mapping of settings is needed, not {show(conf)}")


def check_known(name: str, names: Iterable[str], where: str = "") -> None:
    """Raise InvalidConfigError where `name` is none of `names`."""
    known = list(names)
    if name not in known:
        words = f"there is no {show(name)}, only {', '.join(known)}{near_name(name, known)}"
        raise InvalidConfigError(f"{where}: {words}" if where else words)


def listed(name: str, values: Iterable[Any], what: str, kind: type = object) -> list[Any]:
    """Return values, each of a kind, as a list; InvalidConfigError where they are none."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidConfigError(f"{name} is to have a list of {what}, not {show(values)}")
    found = list(values)
    for value in found:
        if not isinstance(value, kind):
            raise InvalidConfigError(f"{name} is to have a list of {what}, not {show(value)}")
    return found


def scheduler_names(schedulers: Iterable[str]) -> list[str]:
    """Return the names of schedulers as a list; one may be given by itself."""
    names = [schedulers] if isinstance(schedulers, str) else schedulers
    return listed("schedulers", names, "names or module:Class, such as ['even']")
