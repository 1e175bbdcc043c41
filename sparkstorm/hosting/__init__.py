"""Owns where slots run: on Spark, or as plain processes of this machine."""
