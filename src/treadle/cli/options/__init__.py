"""The options that commands share, declared once."""
