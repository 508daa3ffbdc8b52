"""Sinks: where finished groups go."""
