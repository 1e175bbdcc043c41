"""Scaling by true rates: a topology's executors and workers from what it was measured to do."""
