"""In-process twin of the bytes store."""


class LocalBytesStore:
    """A dict, under the laws of BytesStore."""

    def __init__(self) -> None:
        self.data_by_key: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        """Store a value."""
        self.data_by_key[key] = bytes(data)

    def get(self, key: str) -> bytes | None:
        """Read a value."""
        return self.data_by_key.get(key)

    def has(self, key: str) -> bool:
        """Return whether there is a value."""
        return key in self.data_by_key

    def list_keys(self) -> list[str]:
        """All keys, sorted."""
        return sorted(self.data_by_key)

    def wait_copies(self, wanted: int, timeout_ms: int) -> int:
        """One copy, at once."""
        return 1

    def delete(self, key: str) -> None:
        """Delete a value."""
        self.data_by_key.pop(key, None)
