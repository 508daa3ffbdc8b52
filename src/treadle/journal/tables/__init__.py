"""The common part of the stores that keep runs in tables of a database."""
