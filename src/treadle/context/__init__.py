"""The part of a session that the model sees: window, compaction, memory, documents, skills, personas, routing."""
