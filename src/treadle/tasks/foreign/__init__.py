"""Tasks that others wrote: `verifiers:NAME`, `harbor:FOLDER`, `bfcl:CATEGORY` and `tau:DOMAIN`.

A set that cannot be used here, or not without what Treadle does not have, says why in a `ConfigError`.
"""
