"""The dialects: one file or folder for each wire format."""
