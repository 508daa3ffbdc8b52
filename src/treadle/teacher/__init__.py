"""The oracle, a model that solves the built-in tasks by looking, and its server."""
