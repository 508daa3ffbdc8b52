"""A journal in one SQLite file."""
