"""Protocol of the bytes store, which holds the chunks of blobs.

Laws: a value is read back as it was put; `get` of an absent key is None, `delete` of one is fine;
only StoreUnavailableError and StoreFullError leave the seam.
"""

from typing import Protocol


class BytesStore(Protocol):
    """Bulk bytes by key."""

    def put(self, key: str, data: bytes) -> None:
        """Store a value, replacing what was there."""
        ...

    def get(self, key: str) -> bytes | None:
        """Read a value; None when there is none."""
        ...

    def has(self, key: str) -> bool:
        """Return whether there is a value."""
        ...

    def list_keys(self) -> list[str]:
        """All keys, sorted."""
        ...

    def wait_copies(self, wanted: int, timeout_ms: int) -> int:
        """Wait until what was put is in that many copies, or the time is over; return the number
        reached.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete a value; absent is fine."""
        ...
