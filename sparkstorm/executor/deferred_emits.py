"""Tuples emitted by other threads for open inputs: they leave with the input's ack, or not at all.

Were it sent at once, a crash before the ack would have the input executed again, and everything emitted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparkstorm.errors import InvalidTopologyError
from sparkstorm.model.tuples import Roots, Tuple, union_roots

Anchors = Tuple | Sequence[Tuple] | None
Call = Callable[[], None]


class _Answer:
    __slots__ = ("call", "is_done")

    def __init__(self, call: Call) -> None:
        self.call = call
        self.is_done = False


class DeferredEmits:
    """Emissions by the inputs they are anchored to; one with several inputs leaves with the first ack of any of them."""

    def __init__(self) -> None:
        self._by_input: dict[int, list[_Answer]] = {}
        self._given: dict[int, tuple[list[_Answer], list[_Answer]]] = {}  # of acked inputs: all, and those not given before

    def keep(self, inputs: Sequence[Tuple], call: Call) -> None:
        """Keep an emission until one of these inputs is acked."""
        answer = _Answer(call)
        for tup in inputs:
            self._by_input.setdefault(id(tup), []).append(answer)

    def give(self, tup: Tuple) -> None:
        """Make the emissions for this input; raises what they raise."""
        answers = self._by_input.pop(id(tup), [])
        new = [answer for answer in answers if not answer.is_done]
        for answer in new:
            answer.call()
        for answer in new:
            answer.is_done = True
        if new:
            self._given[id(tup)] = answers, new

    def take_back(self, tup: Tuple) -> None:
        """The ack was undone, and with it what it had sent."""
        if id(tup) in self._given:
            self._by_input[id(tup)], new = self._given.pop(id(tup))
            for answer in new:
                answer.is_done = False

    def drop(self, tup: Tuple) -> None:
        """Discard the tuples of a failed input."""
        for answer in self._by_input.pop(id(tup), ()):
            answer.is_done = True

    def settle(self) -> None:
        """Make emitted tuples final."""
        self._given.clear()


def anchored(anchors: Anchors) -> Sequence[Tuple]:
    """Anchors as a sequence."""
    if anchors is None:
        return ()
    return (anchors,) if isinstance(anchors, Tuple) else anchors


def roots_of(anchors: Anchors) -> Roots:
    """Roots of what is emitted with these anchors; InvalidTopologyError for what is no tuple."""
    if isinstance(anchors, Tuple):
        return anchors.roots
    try:
        return union_roots(tup.roots for tup in anchored(anchors))
    except (AttributeError, TypeError):
        raise InvalidTopologyError(f"anchors are tuples that execute was given, not {anchors!r:.80}") from None
