"""JStorm's topology scheduler: places workers on supervisors first, then tasks on workers
(S0.81).
"""
