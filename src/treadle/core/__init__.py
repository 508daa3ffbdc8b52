"""The pure core: values, events, state, decisions, errors. No I/O, no clock, no randomness, no asyncio."""
