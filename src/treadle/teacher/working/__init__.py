"""The teacher as an agent: what it can be asked for, and how it works on that with the tools at hand."""
