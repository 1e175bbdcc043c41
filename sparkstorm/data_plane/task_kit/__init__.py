"""One task around user code, wherever it runs: in a worker, in a partition of a replay, step by
step.
"""
