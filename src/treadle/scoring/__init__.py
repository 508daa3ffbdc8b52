"""Scoring: grades of finished runs, and what follows from them for training."""
