"""The one way out to the network.

What other rooms use: `protocol` and `transport` (requests to model servers), `guarded` (requests of tools, to
allowed hosts only), `sse` (events and lines out of a stream) and `background` (an event loop for blocking callers).
All else is how the transports work: `plain/` speaks HTTP/1.1 on the event loop, `reqwest` wraps pyreqwest.
"""
