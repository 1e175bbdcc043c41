"""Owns content-addressed blobs: signed bytes in chunks in a bytes store, their metadata in the state store."""
