"""What users call: agents, sessions, runs, and the blocking forms of each."""
