"""HTTP/1.1 without TLS, spoken on the caller's event loop: `client` is the module to import.

Why it exists: pyreqwest works in a thread of its own, which wakes the event loop and competes with it for the
interpreter lock; for short requests to one's own engine that costs a third of a step.
"""
