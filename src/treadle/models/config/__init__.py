"""The construction of models from names and from treadle.toml."""
