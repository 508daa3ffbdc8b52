"""Servers that refuse what the real ones refuse: unknown fields, wrong orders of messages, calls without results."""
