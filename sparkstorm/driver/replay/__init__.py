"""The replay job: its file and options, the run, comparison with another version, shadows."""
