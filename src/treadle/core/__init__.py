"""The pure core: values, events, state, decisions, errors. No I/O, no clock, no randomness, no asyncio.

Read first: `types.py`, `events/`, `state.py` and `decide.py`. A concept of the loop (`calls`, `limits`,
`answering`, `asking`) is one module with its values, what its events change, and what is decided about it.
`registry.py` has the class of all registries, `errors.py` all exceptions, and `policy.py` the limits of a turn.

To add an event, see `events/`. To add a limit, add a field to `Policy`, with a default that limits nothing, and
its check to `limits.py`. To add an error, derive it from one of `errors.py`; `is_retryable` of an error of a
provider says whether it is tried again.
"""
