"""Results of a replay: their columns and types, the DataFrames that hold them, and the files they
are written to.
"""
