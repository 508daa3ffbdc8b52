"""Errands: small requests about files, of which the scenario writer draws one and which the agent carries out."""
