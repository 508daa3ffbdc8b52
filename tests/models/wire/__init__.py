"""Servers for each dialect's wire format, for the tests that run over all dialects."""
