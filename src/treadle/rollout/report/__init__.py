"""The report of rollouts: one HTML file with rewards, groups, lengths, tool use, drift and the tokens of runs."""
