"""Hosting of slots: on Spark, or as plain processes of this machine."""
