"""Routers, which choose a tier of models for each turn."""
