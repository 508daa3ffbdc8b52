"""Tools over HTTP: over MCP, and over the Spin tool protocol of DeepFabric."""
