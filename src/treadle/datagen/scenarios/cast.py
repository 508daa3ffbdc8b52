"""Personas: simulated users, drawn from a seed and from the names, roles and styles of `population.toml`."""

from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from treadle.core.texts.documents import read_data
from treadle.datagen.config.generation_config import Personas
from treadle.datagen.scenarios.scenario import UserPersona
from treadle.tasks.draws import fraction, pick


class Population(Struct, frozen=True):
    """The roles, styles and names from which personas are drawn by default."""

    roles: tuple[str, ...]
    """Occupations."""
    styles: tuple[str, ...]
    """Ways of writing."""
    expertise: tuple[str, ...]
    given_names: Mapping[str, tuple[str, ...]]
    """Given names by region."""
    family_names: Mapping[str, tuple[str, ...]]
    """Family names by region."""


@cache
def read_population() -> Population:
    """Return the built-in population."""
    found = read_data(__package__, "population")
    return Population(
        roles=tuple(found["roles"]),
        styles=tuple([f"{tone}, {habit}" for tone in found["tones"] for habit in found["habits"]]),
        expertise=tuple(found["expertise"]),
        given_names={region: tuple(names.split()) for region, names in found["given_names"].items()},
        family_names={region: tuple(names.split()) for region, names in found["family_names"].items()},
    )


_RATIO = 0.6180339887498949
"""Multiples of it, modulo 1, are spread evenly, so that roles repeat only after most of the others."""


def draw_persona(seed: int, number: int, personas: Personas) -> UserPersona:
    """Return the persona of sample `number`. The same seed, number and settings give the same persona."""
    draw = ("persona", seed, number)
    population = read_population()
    roles, styles = personas.roles or population.roles, personas.styles or population.styles
    region = pick(tuple(population.given_names), *draw, "region")
    given = pick(population.given_names[region], *draw, "given")
    family = pick(population.family_names[region], *draw, "family")
    place = (fraction("persona", seed, "role") + number * _RATIO) % 1.0
    return UserPersona(
        name=f"{given} {family}",
        role=roles[int(place * len(roles))],
        style=pick(styles, *draw, "style"),
        expertise=pick(population.expertise, *draw, "expertise"),
    )


def describe_persona(persona: UserPersona) -> str:
    """Return a persona as one sentence, with its style if it has one."""
    about = f"{persona.name}, {persona.role}, {persona.expertise}"
    return f"{about}; style: {persona.style}" if persona.style else about
