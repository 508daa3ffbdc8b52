"""Token formats: groups of rollouts as the rows that trainers read."""
