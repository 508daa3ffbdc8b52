"""Names, providers, treadle.toml, stored keys, and the recipe that makes models from them."""
