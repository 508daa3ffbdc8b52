"""Skills: folders with a `SKILL.md` that a model reads when it needs them, and the tool that brings them."""
