"""The work of an agent on one run: begin, resume or fork it, and drive it to its end."""
