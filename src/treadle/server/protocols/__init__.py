"""Other protocols in which clients talk to the agents of a server: AG-UI, A2A and MCP.

Each is a pure translation: what a client asks becomes a `TurnOrder`, and the events of the turn become its answer.
"""
