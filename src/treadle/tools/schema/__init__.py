"""JSON Schemas of tools and answers: validation, and the definitions of other systems."""
