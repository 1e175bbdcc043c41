"""Owns what people look at: tables and pictures of a cluster."""
