"""Texts for the mistakes of a document."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from treadle.core.texts.mistakes import Keys


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = ""


def test_a_client_with_many_mistakes_is_told_some() -> None:
    """A text about each of a million keys would keep a server busy for minutes."""
    given = {f"nam{number}": 1 for number in range(1000)}
    with pytest.raises(ValidationError) as caught:
        Form.model_validate(given)
    found = Keys(Form.model_json_schema, {}).explain(caught.value.errors(), given)
    assert str(found[0]) == "nam0: there is no such key; did you mean 'name'?"
    assert len(found) == 200
