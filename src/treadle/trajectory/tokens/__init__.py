"""Tokens: what of a run's journal an engine sampled, as branches of token ids."""
