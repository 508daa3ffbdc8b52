"""What an agent knows besides the conversation: its persona, memory, documents and skills."""
