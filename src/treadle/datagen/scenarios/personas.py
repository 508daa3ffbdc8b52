"""Personas: a population of simulated users, drawn from a seed."""

from treadle.datagen.config.model import Personas
from treadle.datagen.scenarios.names import FAMILY_NAMES, GIVEN_NAMES, REGIONS
from treadle.datagen.scenarios.population import EXPERTISE, ROLES, STYLES
from treadle.datagen.scenarios.types import Persona
from treadle.tasks.draws import fraction, pick

_RATIO = 0.6180339887498949
"""Multiples of it, modulo 1, are spread evenly, so that roles repeat only after most of the others."""


def draw_persona(seed: int, number: int, personas: Personas) -> Persona:
    """Return the persona of sample `number`. The same seed, number and settings give the same persona."""
    draw = ("persona", seed, number)
    roles, styles = personas.roles or ROLES, personas.styles or STYLES
    region = pick(REGIONS, *draw, "region")
    given = pick(GIVEN_NAMES[region], *draw, "given")
    family = pick(FAMILY_NAMES[region], *draw, "family")
    place = (fraction("persona", seed, "role") + number * _RATIO) % 1.0
    return Persona(
        name=f"{given} {family}",
        role=roles[int(place * len(roles))],
        style=pick(styles, *draw, "style"),
        expertise=pick(EXPERTISE, *draw, "expertise"),
    )


def describe_persona(persona: Persona) -> str:
    """Return a persona as one sentence."""
    return f"{persona.name}, {persona.role}, {persona.expertise}; style: {persona.style}"
