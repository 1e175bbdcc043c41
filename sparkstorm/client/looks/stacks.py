"""Stacks of a live worker, sampled while a client looks (`extensions/tracing/stacks.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkstorm.client.looks.taps import Sample, TapStore, samples
from sparkstorm.common.errors import StoreUnavailableError
from sparkstorm.data_plane.transport.keys import stacks_name

_LOOK_S = 1.0  # a worker looks for taps about once a second
# Its loop publishes, so a long call keeps it from answering; after so long its slot kills it as
# hung, with its stacks in its log.
_PATIENCE_S = 30.0
_MOST_STACKS = 20_000
_MOST_CALLS = 200
_MOST_NAME = 300


@dataclass(frozen=True, slots=True)
class Stack:
    """Calls of one thread, the outermost first, with the samples that found them and the CPU time
    that they used meanwhile.
    """

    thread: str
    calls: tuple[str, ...]
    samples: int
    cpu_us: int
    # component, task and line of user code that it is inside of; empty where it is in none
    user: str = ""


@dataclass(frozen=True, slots=True)
class Stacks:
    """Stacks of one worker over some seconds, the most frequent first; `samples` were taken of
    every thread.
    """

    slot: str
    seconds: float
    samples: int
    stacks: tuple[Stack, ...]

    def folded(self) -> str:
        """Return a line "thread;call;call N" for each stack, as flame graph tools read them."""
        return "\n".join(
            f"{';'.join(part.replace(';', ',') for part in (s.thread, *s.calls))} {s.samples}"
            for s in self.stacks
        )


def look(store: TapStore, slot: str, seconds: float, patience_s: float = _PATIENCE_S) -> Stacks:
    """Sample the stacks of the worker in a slot for so many seconds; StoreUnavailableError when it
    does not answer.
    """
    taken: list[Sample] = []
    for sample in samples(store, stacks_name(slot), seconds + _LOOK_S + patience_s):
        if sample is not None:
            taken.append(sample)
        # Each has the counts of about a second, and the first of the time since the worker has
        # looked.
        if len(taken) >= seconds:
            break
    if not taken:
        raise StoreUnavailableError(
            f"worker {slot} has not answered for {seconds + _LOOK_S + patience_s:.0f} s: its loop is inside one call, or it is "
            "gone; `sparkstorm logs` has its stacks when its slot has killed it as hung"
        )
    return merged(slot, seconds, taken)


def merged(slot: str, seconds: float, sample_list: Iterable[Sample]) -> Stacks:
    """Add up what a worker has published; values that no worker writes are passed over."""
    sampled = 0
    sums = dict[tuple[str, tuple[str, ...], str], list[int]]()
    for sample in sample_list:
        number = sample.values.get("count")
        stacks = sample.values.get("stacks")
        if type(number) is not int or not isinstance(stacks, list):
            continue
        sampled += max(0, number)
        for row in stacks:
            if (stack := _stack(row)) is not None and len(sums) < _MOST_STACKS:
                figures = sums.setdefault((stack.thread, stack.calls, stack.user), [0, 0])
                figures[0] += stack.samples
                figures[1] += stack.cpu_us
    made = [
        Stack(thread, calls, count, cpu_us, user)
        for (thread, calls, user), (count, cpu_us) in sums.items()
    ]
    return Stacks(
        slot,
        seconds,
        sampled,
        tuple(
            sorted(made, key=lambda stack: (-stack.samples, stack.thread, stack.calls, stack.user))
        ),
    )


def _stack(row: object) -> Stack | None:
    if not isinstance(row, list | tuple) or len(row) != 5:
        return None
    thread, calls, number, cpu_us, user = row
    if (
        type(thread) is not str
        or type(user) is not str
        or not isinstance(calls, list | tuple)
        or any(type(call) is not str for call in calls)
    ):
        return None
    if type(number) is not int or type(cpu_us) is not int or number < 0 or cpu_us < 0:
        return None
    called = tuple(map(_kept, calls[:_MOST_CALLS]))
    return Stack(_kept(thread), called, number, cpu_us, _kept(user))


def _kept(name: str) -> str:
    return name[:_MOST_NAME].encode(errors="backslashreplace").decode()
