"""The built-in filters, grouped by what they look at."""
