"""The rules of a limiter, on a simulated clock: minutes of heavy load in milliseconds."""

import heapq
import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.models.wrappers.limit_rules import Bucket, Concurrency, RequestPace


@given(
    st.floats(0.1, 100_000),
    st.lists(st.tuples(st.floats(0, 20), st.floats(0, 50)), min_size=1, max_size=60),
)
def test_no_minute_has_more_than_its_count(count, steps):
    bucket, now, taken = Bucket.per_minute(count, 0.0), 0.0, []
    for pause, wanted in steps:
        # With few requests per minute, each takes one token.
        wanted = 1.0 if count < 60 else min(wanted, bucket.capacity)
        now += max(pause, bucket.wait(wanted, now + pause) + pause)
        assert bucket.wait(wanted, now) == pytest.approx(0.0, abs=1e-6)
        bucket.take(wanted)
        taken.append((now, wanted))
    for start, _ in taken:
        inside = sum(wanted for at, wanted in taken if start <= at < start + 60 - 1e-6)
        assert inside <= (math.ceil(count) if count < 60 else count * (1 + 1e-6))


def test_what_is_more_than_a_bucket_holds_is_taken_when_it_is_full():
    bucket = Bucket(1.0, 10.0, 0.0)
    bucket.take(5)
    assert bucket.wait(100, 0.0) == pytest.approx(5.0)
    bucket.fill(5.0)
    bucket.take(100)
    # The debt is paid back first.
    assert bucket.wait(1, 5.0) == pytest.approx(91.0)


class Server:
    """A server with a token bucket of requests, which may or may not say when to retry."""

    def __init__(self, rate, burst, header):
        self.rate, self.burst, self.header = rate, burst, header
        self.level, self.at = burst, 0.0

    def asks_to_wait(self, now):
        """Return False if the server answers; otherwise the seconds that it names, or `None` if it names none."""
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level >= 1:
            self.level -= 1
            return False
        missing = (1 - self.level) / self.rate
        if self.header == "seconds":
            return float(math.ceil(missing))
        return math.ceil(now + missing) - now if self.header == "date" else None


def storm(server, *, seconds=60.0, runs=64, seed=0, latency=0.05, change=None):
    """Return the useful share of the bucket, the wasted share of the calls, and the times of the refusals."""
    random = Random(seed)
    pace, concurrency = RequestPace(0.0, random), Concurrency(limit=8, maximum=1000)
    number = itertools.count()
    events: list = []
    now, waiting, in_flight, answered, refused, wake = 0.0, runs, 0, 0, [], -1.0
    while now < seconds:
        while waiting and in_flight < concurrency.limit:
            wait = pace.wait(now)
            if wait > 0:
                if not now < wake <= now + wait:
                    wake = now + wait
                    heapq.heappush(events, (wake, next(number), "wake", None))
                break
            pace.admit(now)
            waiting, in_flight = waiting - 1, in_flight + 1
            asked = server.asks_to_wait(now)
            took = latency if asked is False else 0.005
            heapq.heappush(events, (now + took * random.uniform(0.7, 1.3), next(number), asked, now))
        now, _, asked, sent_at = heapq.heappop(events)
        if change is not None and now > seconds / 2:
            server.rate, change = change, None
        if asked == "wake":
            continue
        waiting, in_flight = waiting + 1, in_flight - 1
        if asked is False:
            answered += 1
            pace.succeed()
            concurrency.answer(now, in_flight + 1, is_full=waiting > 1 and pace.wait(now) == 0.0)
        else:
            refused.append(now)
            pace.refuse(sent_at, now, asked)
    return answered, len(refused) / (answered + len(refused)), refused


@pytest.mark.parametrize("header", ["seconds", "date", "none"])
@pytest.mark.parametrize(("rate", "burst"), [(100, 20), (50, 50), (200, 50), (10, 10)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm_uses_what_the_server_gives(header, rate, burst, seed):
    answered, wasted, _ = storm(Server(rate, burst, header), seconds=120, seed=seed)
    assert answered / (rate * 120 + burst) >= 0.95
    assert wasted <= 0.05


@pytest.mark.parametrize("header", ["seconds", "none"])
@pytest.mark.parametrize(("rate", "later"), [(100, 30), (30, 60)])
def test_a_limit_that_changes_is_found_again(header, rate, later):
    server = Server(rate, 20, header)
    answered, wasted, _ = storm(server, seconds=400, change=later)
    assert answered >= 0.8 * (200 * rate + 200 * min(rate, later))
    assert wasted <= 0.05


def test_nobody_is_sent_before_the_server_said():
    pace = RequestPace(0.0, Random(1))
    for _ in range(20):
        pace.admit(0.0)
    for _ in range(15):
        pace.refuse(0.0, 0.1, 30.0)
    assert 30.0 <= pace.wait(0.1) <= 30.0 * 1.05
    now = 0.1 + pace.wait(0.1)
    # Then they start one after another, not all at once.
    sent = 0
    while pace.wait(now) == 0.0:
        pace.admit(now)
        sent += 1
    assert sent <= 5
    assert pace.refusals == 1


def test_without_a_word_of_the_server_it_waits_ever_longer():
    pace, now, waits = RequestPace(0.0, Random(1)), 0.0, []
    for _ in range(12):
        pace.admit(now)
        pace.refuse(now, now, None)
        waits.append(pace.wait(now))
        now += waits[-1]
        now += pace.wait(now)
    assert waits[5] > 10 * waits[0]
    assert max(waits) <= 60 * 1.05


def test_a_server_that_tells_is_followed_before_it_refuses():
    pace = RequestPace(0.0, Random(1))
    assert pace.wait(0.0) == 0.0
    # 60 a minute, of which 3 are left, with 2 others on the way.
    pace.hear(60, 3, 57.0, 2, 0.0)
    assert pace.rate == pytest.approx(1.0)
    pace.admit(0.0)
    assert pace.wait(0.0) == pytest.approx(1.0)
    # The bucket is full, so nothing is known about how fast it refills.
    pace = RequestPace(0.0)
    pace.hear(60, 60, 0.0, 0, 0.0)
    assert pace.rate is None


def load(latency, *, fixed=None, runs=64, seconds=60.0, noise=0.3, seed=0):
    """Return the number of answers per second, and the limit at the end."""
    random = Random(seed)
    concurrency = Concurrency(limit=8, maximum=1000)
    number = itertools.count()
    events: list = []
    now, in_flight, answered = 0.0, 0, 0
    while now < seconds:
        while in_flight < min(runs, fixed or concurrency.limit):
            in_flight += 1
            took = latency(in_flight) * random.lognormvariate(0, noise)
            heapq.heappush(events, (now + took, next(number)))
        now, _ = heapq.heappop(events)
        in_flight -= 1
        answered += 1
        concurrency.answer(now, in_flight + 1, is_full=in_flight + 1 < runs)
    return answered / seconds, concurrency.limit


@pytest.mark.parametrize("noise", [0.0, 0.3, 0.8])
@pytest.mark.parametrize(
    ("latency", "low", "high"),
    [
        (lambda count: 0.1 if count <= 40 else 0.2, 30, 45),
        (lambda count: 0.1 * max(1, count / 20), 14, 28),
        (lambda count: 0.1, 64, 1000),
    ],
    ids=["doubles past 40", "a queue from 20", "bears anything"],
)
def test_the_number_in_flight_settles_where_it_is_best(latency, low, high, noise):
    best = max(load(latency, fixed=count, noise=noise, seconds=20)[0] for count in (10, 20, 30, 40, 50, 64))
    for seed in range(3):
        rate, limit = load(latency, noise=noise, seed=seed)
        assert rate >= 0.8 * best
        assert low <= limit <= high


def test_an_overloaded_server_is_asked_less():
    concurrency = Concurrency(limit=50, maximum=64)
    concurrency.overload()
    assert concurrency.limit == 35
    for _ in range(100):
        concurrency.overload()
    assert concurrency.limit == 1


def test_a_few_callers_say_nothing_of_the_server():
    concurrency = Concurrency(limit=8, maximum=1000)
    for number in range(1000):
        concurrency.answer(number * 0.01, 2, is_full=False)
    assert concurrency.limit == 8


def test_a_hold_delays_requests_and_teaches_nothing():
    """A server that refuses one of twenty requests at random is not slowed down."""
    pace = RequestPace(0.0, Random(1))
    for number in range(100):
        now = number * 1.0
        pace.hold(now, 0.5)
        assert 0.5 <= pace.wait(now) <= 0.53
        assert pace.wait(now + 0.6) == 0.0
        pace.admit(now + 0.6)
    assert pace.rate is None


@pytest.mark.parametrize("seed", range(20))
def test_refusals_at_random_leave_a_rate(seed):
    """Also if the first request after a pause is refused, so that a period has none that was accepted."""
    random = Random(seed)
    pace, now = RequestPace(0.0, random), 0.0
    for _ in range(300):
        while (wait := pace.wait(now)) > 0:
            now += wait + 1e-6
        pace.admit(now)
        now += 0.01
        if random.random() < 0.3:
            pace.refuse(now - 0.01, now, random.choice([None, 0.02, 0.05]))
        else:
            pace.succeed()
    assert now < 3_000
