"""The report of a dataset: one HTML file with pictures, which needs no network."""
