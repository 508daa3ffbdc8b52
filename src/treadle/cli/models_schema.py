"""`treadle models schema`."""

EXAMPLES = (
    "treadle models schema",
    "treadle models schema > treadle.schema.json",
)


def schema() -> None:
    """Print the JSON Schema of treadle.toml, by which editors complete and check it."""
    import msgspec

    from treadle.cli.terminal.output import print_lines
    from treadle.models.config.file import config_schema

    print_lines([msgspec.json.format(msgspec.json.encode(config_schema()), indent=2)])
