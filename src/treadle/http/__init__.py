"""All access to the network.

Other packages of Treadle use `protocol` and `transport` (requests to model servers), `guarded` (requests of
tools, only to allowed hosts), `sse` (events and lines of a stream) and `background` (an event loop for
blocking callers). The other modules implement the transports: `plain/` speaks HTTP/1.1 on the event loop,
`reqwest` wraps pyreqwest.
"""
