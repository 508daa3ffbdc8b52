"""What the stores that keep runs in tables of a database have in common."""
