"""Tools served to other programs, over MCP and over DeepFabric's Spin protocol.

Read first: `tool_sessions` (each client has files of its own), then `tool_app` (what is served over HTTP).
"""
