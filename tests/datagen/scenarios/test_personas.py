"""The population of personas."""

from collections import Counter

from treadle.datagen.config.generation_config import Personas
from treadle.datagen.scenarios.cast import (
    describe_persona,
    draw_persona,
    read_population,
)
from treadle.datagen.scenarios.scenario import UserPersona

BUILT_IN = Personas()
POPULATION = read_population()


def test_the_same_seed_gives_the_same_population():
    """Rules out unseeded randomness. The values are fixed, so that a change of the lists is seen."""
    first = [draw_persona(5, number, BUILT_IN) for number in range(1, 40)]
    assert first == [draw_persona(5, number, BUILT_IN) for number in range(1, 40)]
    assert first != [draw_persona(6, number, BUILT_IN) for number in range(1, 40)]


def test_ten_thousand_personas_do_not_repeat_noticeably():
    drawn = [draw_persona(1, number, BUILT_IN) for number in range(1, 10_001)]
    assert len(set(drawn)) == 10_000
    assert len({(item.role, item.style, item.expertise) for item in drawn}) > 9_600
    assert Counter(item.name for item in drawn).most_common(1)[0][1] <= 12
    roles = Counter(item.role for item in drawn)
    assert set(roles) == set(POPULATION.roles)
    assert max(roles.values()) - min(roles.values()) <= 4
    assert {item.style for item in drawn} == set(POPULATION.styles)
    assert {item.expertise for item in drawn} == set(POPULATION.expertise)


def test_neighbours_have_different_roles():
    roles = [draw_persona(2, number, BUILT_IN).role for number in range(1, 301)]
    assert all(len(set(roles[start : start + 100])) == 100 for start in range(200))


def test_the_configuration_may_have_its_own_lists():
    personas = Personas(roles=["cook", "judge"], styles=["terse"])
    drawn = [draw_persona(1, number, personas) for number in range(1, 50)]
    assert {item.role for item in drawn} == {"cook", "judge"}
    assert {item.style for item in drawn} == {"terse"}


def test_names_come_from_many_regions():
    assert POPULATION.given_names.keys() == POPULATION.family_names.keys()
    assert len(POPULATION.given_names) > 30
    assert all(
        len(set(names)) == len(names) >= 10
        for names in [*POPULATION.given_names.values(), *POPULATION.family_names.values()]
    )


def test_a_persona_in_one_sentence():
    persona = UserPersona(name="Ana Lima", role="baker", style="brief", expertise="novice")
    assert describe_persona(persona) == "Ana Lima, baker, novice; style: brief"
