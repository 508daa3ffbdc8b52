"""All access to the network.

Other rooms use `protocol` and `transport` (requests to model servers), `guarded` (requests of tools, only to
allowed hosts), `pinned` (one connection that is never replaced), `sse` (events and lines of a stream),
`background` (an event loop for blocking callers) and `locks` (the locks of all rooms). Read first: `protocol.py`,
`transport.py`. Two clients implement the transport: `plain/` speaks HTTP/1.1 on the caller's event loop, `reqwest`
wraps pyreqwest for proxies, for tools, and for https:// where Python does not know the system's certificates. All
their errors are made in `transport_errors`, so that both say the same.
"""
