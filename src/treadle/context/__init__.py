"""What the model sees of a session: its window, the view of a step, and compaction."""
