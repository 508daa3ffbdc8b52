"""The built-in filters."""
