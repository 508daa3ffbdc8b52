"""Models that wrap another model: retries, limits, fallbacks, caches, costs, text formats."""
