"""One task of a bolt, executed tuple by tuple: recorded rows, capsules, and a process of its own
for other code.
"""
