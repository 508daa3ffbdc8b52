"""What of a session the model sees, and how a message is understood before it is sent."""
