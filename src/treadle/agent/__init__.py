"""The classes that users call: agents, sessions, runs and streams, each also in a blocking form."""
