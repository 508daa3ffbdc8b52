"""The chat API of Ollama."""
