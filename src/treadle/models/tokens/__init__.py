"""Models that are sent token ids and that return token ids."""
