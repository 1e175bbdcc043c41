"""Content-addressed blobs: signed bytes in chunks in a bytes store, metadata in the state store;
code of topologies.
"""
