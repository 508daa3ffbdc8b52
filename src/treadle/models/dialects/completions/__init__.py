"""Plain text completions, for models whose tool calls are text."""
