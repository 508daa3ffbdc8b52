"""Agents, models and runs served over HTTP, and tools served over MCP and over DeepFabric's Spin protocol.

Read first: `run_host` (the runs that a server drives), `responses/` (a part of a run as a response) and `routes/`
(one router for each resource); `access` says who may ask. No code here drives a run in a way of its own. For tools:
`tool_sessions` (each client has files of its own), then `tool_app`.
"""
