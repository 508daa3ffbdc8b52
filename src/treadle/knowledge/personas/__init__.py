"""Personas: who an agent is, in one YAML file, and the system message that is made from it."""
