"""The rules of a limiter: how fast to ask, and how much at a time. Pure: the time is given, in seconds.

A server that limits requests is taken for a bucket that fills at a steady rate. Each refusal says that the bucket
is empty; so what was let through between two refusals, over the time between them, is the rate.
"""

import math
from random import Random

_SAFETY = 0.985
"""Of the rate that was learned. What is left of it is the price of hardly ever being refused."""
_DOUBLING_SECONDS = 0.7
"""Of the rate, as long as it was not learned."""
_HOLD_SECONDS = 5.0
_HOLD_WAITS = 60
"""For how many times of what a refusal costs a learned rate is kept, before a higher one is tried."""
_GROWTH = 0.004
"""Of the learned rate, a second, after that."""
_CHANGED = 0.85
_ENOUGH = 12
"""Requests from which a learned rate is learned anew."""
_FEW = 5
"""Requests of which nothing is learned."""
_TRUSTED = 100
"""Requests from which a rate is learned well."""
_MEMORY = 2_000
"""Requests over which a learned rate is averaged."""


class Bucket:
    """Tokens that come back at `rate` a second, up to `capacity`. Its level may be below zero: a debt."""

    __slots__ = ("at", "capacity", "level", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self.level = capacity
        self.at = now

    @classmethod
    def per_minute(cls, count: float, now: float) -> "Bucket":
        """One that gives no more than `count` in any minute: a second's worth at once, and the rest steadily.

        Where a second is worth less than one, one is given at a time.
        """
        if count < 60:
            return cls(count / 60, 1.0, now)
        return cls((count - count / 60) / 60, count / 60, now)

    def fill(self, now: float) -> None:
        """What has come back until `now`."""
        if now > self.at:
            self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
            self.at = now

    def wait(self, count: float, now: float) -> float:
        """Until `count` can be taken. What is more than it holds can be taken when it is full."""
        self.fill(now)
        missing = min(count, self.capacity) - self.level
        # So little is missing only because the time is rounded.
        return 0.0 if missing <= 1e-9 else missing / self.rate

    def take(self, count: float) -> None:
        """Take `count`, or give it back."""
        self.level = min(self.capacity, self.level - count)


def follow(
    bucket: Bucket | None, total: float, left: float, reset_seconds: float, on_the_way: float, now: float
) -> Bucket:
    """The bucket of a server that says how much it holds, how much is left, and when all of it is back.

    `on_the_way` is what was sent and may not be in what it said.
    """
    # Until all is there again, all that is missing comes back.
    rate = (total - left) / reset_seconds
    if bucket is None:
        bucket = Bucket(rate, total, now)
    bucket.rate += 0.2 * (rate - bucket.rate)
    bucket.capacity, bucket.level, bucket.at = total, left - on_the_way, now
    return bucket


class Pace:
    """The rate of requests that a server bears, learned from its refusals and from what its headers say."""

    def __init__(self, now: float, random: Random | None = None) -> None:
        self.rate: float | None = None
        """Requests a second, as learned; `None`: nothing was refused yet, and nothing is held back."""
        self.not_before = now
        """Nothing is sent until then."""
        self.refusals = 0
        """Times that the bucket was found to be empty, however many requests were refused for it."""
        self._random = random or Random()
        self._bucket: Bucket | None = None
        self._empty_at = now
        """When it was last found to be empty, or the first request was sent."""
        self._resumed_at = now
        self._accepted = 0
        """Admitted since then, less those that were refused."""
        self._waited = 0.0
        self._before: tuple[float, float, float] | None = None
        """What was let through up to a refusal, in which time, and how much of it was waiting: not yet judged."""
        self._carried: tuple[float, float, float] = (0, 0.0, 0.0)
        """Of the same, what was too little to be judged."""
        self._first: tuple[float, float] | None = None
        """What was let through before the first refusal, and in which time: it holds what the bucket holds."""
        self._line: tuple[float, float] | None = None
        """The last time after a pause: what was let through, and in how many seconds."""
        self._weight = 0.0
        """Of how many requests the learned rate is."""
        self._borne: float | None = None
        """The rate that was borne, before a higher one was tried."""
        self._doubling_seconds = _DOUBLING_SECONDS
        self._unlucky = 0
        """Refusals without a success between them."""
        self._told_at: float | None = None

    def wait(self, now: float) -> float:
        """Until the next request may be sent."""
        if now < self.not_before:
            return self.not_before - now
        if self._before is not None:
            self._judge(now)
        bucket = self._bucket
        if bucket is None:
            return 0.0
        self._raise(now)
        return bucket.wait(1, now)

    def admit(self, now: float) -> None:
        """A request is sent."""
        if not self._accepted and not self.refusals:
            self._empty_at = now
        self._accepted += 1
        if self._bucket is not None:
            self._bucket.fill(now)
            self._bucket.take(1)

    def succeed(self) -> None:
        """A request was answered."""
        self._unlucky = 0

    def refuse(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """A request was refused. `retry_after` is what the server said, in seconds."""
        is_known = self.refusals > 0 and sent_at < self._empty_at
        if is_known:
            # It was on its way when the first one came back.
            if self._before is not None:
                accepted, seconds, waited = self._before
                self._before = (accepted - 1, seconds, waited)
            if retry_after is None:
                return
        else:
            # Between two refusals the way to the server and back is in both; the beginning has none.
            seconds = (now if self.refusals else sent_at) - self._empty_at
            self.refusals += 1
            self._unlucky += 1
            self._before = (self._accepted - 1, seconds, self._waited)
            self._empty_at, self._accepted = now, 0
            if retry_after is None:
                slowest = self.rate or 10.0
                retry_after = min(60.0, max(0.05, 1 / slowest) * 2.0 ** (self._unlucky - 1))
        # Not all at the same moment, where several processes wait for the same server.
        self.not_before = max(self.not_before, now + retry_after * (1 + 0.05 * self._random.random()))
        self._waited = self.not_before - self._empty_at

    def hear(self, total: float, left: float, reset_seconds: float, on_the_way: int, now: float) -> None:
        """What a server said of its requests, with an answer, while others were on the way to it."""
        if left >= total or reset_seconds <= 0:
            return
        if self._told_at is None:
            self._bucket = None
        self._bucket = follow(self._bucket, total, left, reset_seconds, on_the_way, now)
        self.rate, self._told_at = self._bucket.rate, now

    def _judge(self, now: float) -> None:
        """Learn from what was let through up to the last refusal, now that all of it is known."""
        assert self._before is not None
        accepted, seconds, waited = (new + old for new, old in zip(self._before, self._carried, strict=True))
        self._before = None
        self._resumed_at = now
        if self._told_at is not None:
            return  # The server says it better.
        if self._first is None:
            self._first = (accepted, max(seconds, 1e-3))
            # Half of what was too much; from there it is doubled until it is too much again.
            guess = max(0.5 * accepted / max(seconds, 0.1), 1.0)
            self._restart(guess, max(1.0, accepted * 0.7), now)
            return
        rate, counted = self._estimate(accepted, seconds, waited) if accepted > 0 else (0.0, 0.0)
        assert self._bucket is not None
        if self.rate is None and counted < _FEW:
            # That tells too little. It was too much, though, so go on from less, and more slowly.
            self._doubling_seconds *= 1.7
            self._restart(max(self._bucket.rate * 0.75, 1e-3), self._bucket.capacity, now)
            return
        if counted < _ENOUGH and self.rate is not None:
            # Soon refused again: what comes next is counted with it, since the bucket was empty in between.
            self._carried = (accepted, seconds, waited)
            self._restart(max(self._bucket.rate * 0.8, 1e-3), self._bucket.capacity, now)
            return
        self._carried = (0, 0.0, 0.0)
        if self.rate is None or rate < self.rate * _CHANGED:
            # Nothing was known, or the limit has become another.
            self.rate, self._weight = rate, 0.0
        else:
            self.rate += (rate - self.rate) * counted / (counted + self._weight)
        self._weight = min(self._weight + counted, _MEMORY)
        burst = max(0.0, self._first[0] - self.rate * self._first[1])
        if self._borne is not None and burst < 3:
            # A bucket that holds next to nothing ran over until it was refused, so less came than could have. But
            # it was refused only after it was raised: the limit is between the two.
            self.rate = max(self.rate, (self._borne + self._bucket.rate) / 2)
        held = min(burst, self.rate * (now - self._empty_at))
        # A token more or less was there; of a small count that is much, and worth finding out.
        doubt = min(0.5, 0.8 / self._weight)
        self._restart(self.rate * (_SAFETY + doubt), max(1.0, burst * 0.8), now, held * 0.8)

    def _estimate(self, accepted: float, seconds: float, waited: float) -> tuple[float, float]:
        """The rate at which `accepted` came in `seconds`, of which `waited` were waiting; and of how many it is.

        While we wait, the bucket fills no further than it can hold, which is what came before the first refusal.
        """
        assert self._first is not None
        self._refine(accepted, seconds, waited)
        count, first_seconds = self._first
        low, high = accepted / seconds, accepted / max(seconds - waited, 1e-3)
        rate, counted = low, accepted
        if low * waited > max(count - low * first_seconds, 0.0):
            active = seconds - waited - first_seconds
            if active > 0.1 * seconds and accepted > count:
                rate, counted = (accepted - count) / active, accepted - count
        return min(max(rate, low), high), float(counted)

    def _refine(self, accepted: float, seconds: float, waited: float) -> None:
        """Tell how much the bucket holds, by two times that it was full at their beginning.

        What came in them is what it holds, and the rate over the time: two points of a line.
        """
        active = seconds - waited
        before, self._line = self._line, (accepted, active)
        if before is None or abs(active - before[1]) < 0.25 * active:
            return
        rate = (accepted - before[0]) / (active - before[1])
        burst = accepted - rate * active
        if accepted / seconds <= rate <= accepted / max(active, 1e-3) and burst <= rate * waited:
            self._first = (burst, 0.0)

    def _restart(self, rate: float, capacity: float, now: float, level: float | None = None) -> None:
        self._borne = None
        self._bucket = Bucket(rate, capacity, now)
        self._bucket.level = min(capacity, level if level is not None else 1.0)

    def _raise(self, now: float) -> None:
        """Ask for more, where it was long not refused."""
        bucket = self._bucket
        assert bucket is not None
        if self._told_at is not None:
            return
        seconds = now - bucket.at
        if self.rate is None:
            bucket.rate *= 2 ** (seconds / self._doubling_seconds)
            return
        # What was learned from few requests is sooner doubted.
        trust = min(1.0, self._weight / _TRUSTED)
        if now - self._resumed_at > (_HOLD_SECONDS + _HOLD_WAITS * self._waited) * trust:
            if self._borne is None:
                self._borne = bucket.rate
            bucket.rate *= 1 + _GROWTH * seconds / trust


class Concurrency:
    """How many requests a server bears at a time, found by trying.

    After each window of some answers the number is changed, and what comes through with it is compared to what
    came through before: more in flight must bring more answers, or else fewer do as well. At first it doubles,
    then it goes by steps of a tenth. Windows in which something else held the requests back say nothing.
    """

    def __init__(self, *, limit: int, maximum: int) -> None:
        self.limit = min(limit, maximum)
        self._maximum = maximum
        self._is_starting = True
        self._count = 0
        self._in_flight = 0
        self._begin: float | None = None
        self._is_full = True
        """The present window: nothing but this limit held requests back."""
        self._best: tuple[int, float] | None = None
        """The number to go back to, and the answers a second with it."""
        self._rest = 0
        """Windows until the next try."""
        self._tries = 0
        self._direction = 1

    def answer(self, now: float, in_flight: int, *, is_full: bool) -> None:
        """An answer came, as one of `in_flight`; `is_full` says whether others wait for nothing but a place."""
        if self._begin is None:
            self._begin = now
            return
        self._count += 1
        self._in_flight += in_flight
        self._is_full = self._is_full and is_full
        if self._count < self._size():
            return
        seconds = now - self._begin
        rate = self._count / seconds if seconds > 0 else math.inf
        tried = float(self.limit) if self._is_full else min(self._in_flight / self._count, self.limit)
        # With fewer in flight than may be, it is the callers who set the pace; unless they are more than before.
        if self._is_full or (self._best is not None and tried > self._best[0] * 1.05):
            self._decide(rate, tried)
        self._forget()

    def _forget(self) -> None:
        self._begin, self._count, self._in_flight, self._is_full = None, 0, 0, True

    def overload(self) -> None:
        """The server said that it is too much for it."""
        self.limit = max(1, int(self.limit * 0.7))
        self._is_starting = False
        self._best = None
        self._forget()
        self._rest = 5

    def _size(self) -> int:
        # In the first answers of a window are those that were sent before it.
        return 2 * self.limit if self._is_starting else 3 * self.limit

    def _decide(self, rate: float, tried: float) -> None:
        if self._best is None:
            self._best = (self.limit, rate)
            self._try()
            return
        limit, best = self._best
        if self.limit == limit:
            # Nothing was tried: things may have changed.
            self._best = (limit, best + 0.3 * (rate - best))
            self._rest -= 1
            if self._rest <= 0:
                self._try()
            return
        more = rate / best - 1
        asked = tried / limit - 1
        # Half of what was hoped for; of fewer in flight, hardly anything lost.
        is_better = more > 0.5 * asked if asked > 0 else more > 0.25 * asked
        if is_better:
            self._best = (self.limit, rate)
            self._tries = 0
            self._try()
            return
        if self._is_starting:
            self._is_starting = False
            self.limit, self._rest = limit, 0
            return
        self.limit = limit
        self._direction = -self._direction
        self._tries += 1
        # The more often it was in vain, the longer it rests.
        self._rest = min(4 * 2 ** min(self._tries, 4), 60)

    def _try(self) -> None:
        assert self._best is not None
        if self._is_starting:
            self.limit = min(self._maximum, self.limit * 2)
            return
        step = max(1, self.limit // 10)
        self.limit = max(1, min(self._maximum, self.limit + self._direction * step))
