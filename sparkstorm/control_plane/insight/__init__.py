"""Judgements on a running topology from the records that its workers commit: what is slow, held
back, failing or lost. PURE.
"""
