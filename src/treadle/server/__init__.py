"""Servers: what Treadle answers over HTTP."""
