"""Tables in object stores: sinks that write them by the log of their format."""
