"""Tasks that others wrote: `verifiers:NAME` and `harbor:FOLDER`.

A set that cannot be used here, or not without what Treadle does not have, says why in a `ConfigError`.
"""
