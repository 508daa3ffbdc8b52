"""The Chat Completions API of OpenAI, which many servers speak."""
