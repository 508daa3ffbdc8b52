"""The next prompt: what the model is shown, how large it is, and the marks around text of others."""
