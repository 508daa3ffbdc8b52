"""Models around a model: retries, limits, fallbacks, caches, costs, text formats."""
