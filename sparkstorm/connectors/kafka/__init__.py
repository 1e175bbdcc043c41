"""Kafka: source, sink, and the client that they share."""
