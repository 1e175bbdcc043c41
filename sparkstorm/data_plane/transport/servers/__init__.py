"""Which server of Sentinels or of a cluster a connection is for, and its opening."""
