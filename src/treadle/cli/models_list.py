"""`treadle models list`."""

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle models list",
    "treadle models list --json",
)


def list_models(is_json: o.IsJson = False) -> None:
    """List the models of treadle.toml, and the providers whose models can be named as provider:name."""
    from treadle.cli.model_listing import print_models

    print_models(is_json=is_json)
