"""Datasets: the folder of a dataset, its statistics, splits, card and report."""
