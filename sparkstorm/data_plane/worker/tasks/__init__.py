"""Tasks of one worker: spout tasks, bolt tasks, acker tasks, their inboxes and the factory that
makes them.
"""
