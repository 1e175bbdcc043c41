"""One task of a bolt, executed tuple by tuple: recorded rows, capsules, and its own process
for other code.
"""
