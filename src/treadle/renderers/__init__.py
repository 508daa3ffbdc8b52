"""Renderers: messages and tools to token ids, and the ids of an answer back to a message."""
