"""Documents that people write, the places of their mistakes, changes between versions, and secrets in texts."""
