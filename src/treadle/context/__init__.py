"""What of a session the model sees: window, compaction, memory, documents, skills, personas, routing."""
