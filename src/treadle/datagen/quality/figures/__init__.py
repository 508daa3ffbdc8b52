"""Figures in texts, and the quantities that they say."""
