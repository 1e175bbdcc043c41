"""Views into a running topology: taps, traces and journeys of tuples, stacks of workers."""
