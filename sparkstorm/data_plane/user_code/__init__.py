"""Code of a topology: packed and signed by the client, unpacked and loaded in the worker."""
