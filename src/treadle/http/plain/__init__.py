"""HTTP/1.1 without TLS on the caller's event loop. The entry point is `client`.

It exists because pyreqwest works in its own thread, which wakes the event loop and competes with it for the
interpreter lock. For short requests to a local engine that costs a third of a step.
"""
