"""Displays for notebooks and pages: tables and pictures of a cluster."""
