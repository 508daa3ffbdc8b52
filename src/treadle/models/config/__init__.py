"""Makes models from names and from treadle.toml."""
