"""A message that needs no thinking says nothing else."""

import pytest

from treadle.routing.judging import is_boilerplate


@pytest.mark.parametrize(
    "message",
    ["ok", "Thanks!", "Thank you so much for your help 😊", "👍", "Perfect, that's exactly what I needed.",
     "Tusen takk for hjelpen!", "Den er god, takk", "rephrase that please",
     "Can you summarise that in three bullet points?", "Kan du omformulere det med enklere ord?",
     "say that in plain words please", "samme svar, men på engelsk",
     "thanks for your patience, have a good evening :)", "hei på deg :)"],
)  # fmt: skip
def test_thanks_and_requests_for_another_form_need_no_thinking(message: str) -> None:
    assert is_boilerplate(message)


@pytest.mark.parametrize(
    "message",
    ["Great, now write a 20-page novel about bees", "is it ok to sue my landlord over mould?", "try again",
     "Thanks, but the second test still fails", "Supert, men hvorfor feiler den siste testen?", "", "?",
     "now the same for the Leeds office", "thanks, and what about the other one?", "takk, men hva koster det?",
     "summarise that paper on dark matter", "Okay so what is the difference between TCP and UDP?", "ok `rm -rf`"],
)  # fmt: skip
def test_a_message_that_asks_for_more_does_not_go_to_the_smallest_model(message: str) -> None:
    """Rules out that a word such as "great" or "ok" anywhere in a message makes the whole of it trivial."""
    assert not is_boilerplate(message)


def test_an_agreement_to_a_question_is_an_answer() -> None:
    assert not is_boilerplate("ok, great", follows_question=True)
    assert is_boilerplate("ok, thanks", follows_question=True)
