"""The difficulty of a message, for the routers."""

from treadle.routing.judging import rate_difficulty


def test_hard_work_is_rated_above_easy_work() -> None:
    """Rules out a router without any signal of how hard a message is."""
    easy = ["thanks", "What is the capital of France?", "Translate 'cat' to Norwegian", "Hva betyr begrep?"]
    hard = [
        "Design a distributed lock service that survives partitions, and prove that it is safe",
        "Sammenlign fordeler og ulemper ved en monolitt og mikrotjenester, og legg en plan for migreringen",
        "Great, now write a 20-page novel about bees",
    ]
    assert max(map(rate_difficulty, easy)) < 0.3 < 0.6 <= min(map(rate_difficulty, hard))
    assert rate_difficulty("thanks") == 0.0
    assert all(0.0 <= rate_difficulty(text * 50) <= 1.0 for text in hard)
