"""Servers that refuse what the real ones refuse: unknown fields, wrong orders, calls without results."""
