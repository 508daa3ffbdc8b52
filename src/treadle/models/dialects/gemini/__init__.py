"""The Gemini API of Google."""
