"""The descriptions in the schemas of what people write."""

from pydantic import BaseModel, Field

from treadle.models.config.described import Described


class Inner(Described, BaseModel):
    """A part of it."""

    kept: int = 1
    """How much is kept.

    The rest is not."""


class Outer(Inner):
    renamed: int = Field(2, alias="other")
    """Its other name is in files."""
    said: int = Field(3, description="What the field itself says.")
    """What is said less exactly."""
    part: Inner = Inner()
    """A part of it."""
    own: Inner = Inner()
    """The part that is described here."""
    silent: int = 4


def test_the_docstring_below_a_field_is_its_description() -> None:
    schema = Outer.model_json_schema()
    told = {name: field.get("description") for name, field in schema["properties"].items()}
    assert told == {
        "kept": "How much is kept.\n\nThe rest is not.",
        "other": "Its other name is in files.",
        "said": "What the field itself says.",
        "part": None,
        "own": "The part that is described here.",
        "silent": None,
    }
    assert schema["$defs"]["Inner"]["properties"]["kept"]["description"] == told["kept"]


def test_a_class_without_its_source_has_no_descriptions() -> None:
    found: dict[str, type[BaseModel]] = {}
    exec(
        "from pydantic import BaseModel\nfrom treadle.models.config.described import Described\n"
        "class Made(Described, BaseModel):\n    a: int = 1\n    '''What it is.'''\n",
        found | {"__name__": "nowhere"},
        found,
    )
    assert "description" not in found["Made"].model_json_schema()["properties"]["a"]
