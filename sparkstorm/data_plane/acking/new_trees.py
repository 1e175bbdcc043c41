"""Trees that a spout task begins: which batch a message joins, and the root of its rows. PURE:
roots are drawn elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sparkstorm.common.model.roots import batch_root, tree_root


class NewTrees:
    """Trees that a spout task has begun since they were taken: message ids in the order of
    emission, in batches.
    """

    __slots__ = ("_draw", "_root", "_start", "_starts", "ids", "size")

    def __init__(self, draw_root: Callable[[], int] | None) -> None:
        self._draw = draw_root or (lambda: 0)
        self._starts: list[tuple[int, int]] = []  # place of a batch's first message, and its root
        self._root = 0  # root of the open batch, which began here
        self._start = -1
        self.ids: list[Any] = []
        self.size = 1  # messages of a batch at the most; of one message: a tree by itself

    def next_root(self) -> int:
        """Root of the next message; it counts once its id is among `ids`."""
        offset = len(self.ids) - self._start
        if self._start < 0 or offset >= self.size:
            self._begin(tree_root(self._draw()) if self.size == 1 else batch_root(self._draw()))
            offset = 0
        return self._root + offset

    def begin_alone(self) -> None:
        """Let the next message be a tree by itself, which waits for no other; the one after it
        begins a batch.
        """
        self._begin(tree_root(self._draw()))
        self.end_batch()

    def end_batch(self) -> None:
        """Let the next message begin a batch."""
        self._start = -1

    def roll_back(self, count: int) -> None:
        """Forget all messages but the first ones."""
        del self.ids[count:]
        while self._starts and self._starts[-1][0] >= count:
            self._starts.pop()
        self.end_batch()

    def take(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield the root and the message ids of each batch, and begin anew."""
        ends = [start for start, _ in self._starts[1:]] + [len(self.ids)]
        for (start, root), end in zip(self._starts, ends, strict=False):
            if start < end:
                yield root, self.ids[start:end]
        self._starts.clear()
        self.ids.clear()
        self.end_batch()

    def _begin(self, root: int) -> None:
        self._root, self._start = root, len(self.ids)
        if self._starts and self._starts[-1][0] == self._start:
            self._starts.pop()  # its message was not sent
        self._starts.append((self._start, root))
