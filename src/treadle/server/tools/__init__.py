"""Treadle's tools for other programs, over MCP and Spin."""
