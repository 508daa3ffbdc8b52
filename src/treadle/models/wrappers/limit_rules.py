"""The rules of a limiter: how fast to send, and how many requests at a time.

The rules are pure: the time is an argument, in seconds. A server that limits requests is modelled as a bucket
that fills at a constant rate.
"""

import math
from random import Random

_CUT, _DEEP_CUT = 0.9, 0.5
"""The fractions of the rate that remain after a refusal: usually, and if the rate was far too high."""
_FEW = 3
"""A rate at which fewer requests than this are accepted was far too high."""
_GROWTH, _START_GROWTH = 1.004, 2.7
"""The factors by which the rate rises each second in which it delays requests: usually, and until it was too high
for the first time."""
_MAX_GROWING_SECONDS = 1.0
"""The longest delay of one request for which the rate rises."""


class Bucket:
    """A bucket that fills at `rate` a second, up to `capacity`. Its level may be below zero, which is a debt."""

    __slots__ = ("at", "capacity", "level", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self.level = capacity
        self.at = now

    @classmethod
    def per_minute(cls, count: float, now: float) -> "Bucket":
        """Return a bucket that gives at most `count` in any minute.

        It gives the share of one second at once, and the rest at a constant rate. If the share of a second is
        less than one, one is given at a time.
        """
        if count < 60:
            return cls(count / 60, 1.0, now)
        return cls((count - count / 60) / 60, count / 60, now)

    def fill(self, now: float) -> None:
        """Raise the level by the amount that has flowed in until `now`."""
        if now > self.at:
            self.level = min(self.capacity, self.level + (now - self.at) * self.rate)
            self.at = now

    def wait(self, count: float, now: float) -> float:
        """Return the seconds until `count` can be taken. More than the capacity can be taken from a full bucket."""
        self.fill(now)
        missing = min(count, self.capacity) - self.level
        # A tiny amount is missing only because times are rounded.
        return 0.0 if missing <= 1e-9 else missing / self.rate

    def take(self, count: float) -> None:
        """Take `count` out of the bucket; a negative count puts back."""
        self.level = min(self.capacity, self.level - count)


def follow(
    bucket: Bucket | None, total: float, left: float, reset_seconds: float, on_the_way: float, now: float
) -> Bucket:
    """Return the bucket of a server that reports its limit, what is left of it, and when it is full again.

    `on_the_way` is the amount of sent requests that the report may not include yet.
    """
    # The missing amount flows in until the bucket is full.
    rate = (total - left) / reset_seconds
    if bucket is None:
        bucket = Bucket(rate, total, now)
    bucket.rate += 0.2 * (rate - bucket.rate)
    bucket.capacity, bucket.level, bucket.at = total, left - on_the_way, now
    return bucket


class RequestPace:
    """The rate of requests that a server accepts: as its headers tell it, or found by trying.

    A refusal means that the rate was too high, so it is lowered; without refusals it rises slowly.
    """

    def __init__(self, now: float, random: Random | None = None) -> None:
        self.not_before = now
        """The time before which nothing is sent."""
        self.refusals = 0
        """How often the server was found to refuse, however many requests were refused each time."""
        self._random = random or Random()
        self._bucket: Bucket | None = None
        """What is sent at the rate; `None` before the first refusal."""
        self._refused_at = now
        """When the server last began to refuse, or the first request was sent."""
        self._sent = 0
        """How many requests were sent since then."""
        self._unlucky = 0
        """How many consecutive requests were refused."""
        self._is_starting = True
        """True until the rate was too high for the first time."""
        self._is_told = False
        self._delays = False
        """True if the newest request waits for the rate. A rate that delays nothing does not rise."""

    @property
    def rate(self) -> float | None:
        """The rate in requests per second; `None`: not known yet."""
        return (
            None if self._bucket is None or (self._is_starting and not self._is_told) else self._bucket.rate
        )

    def wait(self, now: float) -> float:
        """Return the seconds until the next request may be sent."""
        if now < self.not_before:
            return self.not_before - now
        bucket = self._bucket
        if bucket is None:
            return 0.0
        if self._delays and not self._is_told:
            growth = _START_GROWTH if self._is_starting else _GROWTH
            bucket.rate *= growth ** min(max(0.0, now - bucket.at), _MAX_GROWING_SECONDS)
        seconds = bucket.wait(1, now)
        self._delays = seconds > 0
        return seconds

    def admit(self, now: float) -> None:
        """Record that a request is sent."""
        if not self._sent and not self.refusals:
            self._refused_at = now
        self._sent += 1
        if self._bucket is not None:
            self._bucket.fill(now)
            self._bucket.take(1)

    def succeed(self) -> None:
        """Record that a request was answered."""
        self._unlucky = 0

    def refuse(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """Record that a request was refused. `retry_after` is the delay that the server asked for, in seconds."""
        if not self.refusals or sent_at >= self._refused_at:
            self.refusals += 1
            self._unlucky += 1
            self._slow_down(now)
            self._refused_at, self._sent = now, 0
            if retry_after is None:
                slowest = self.rate or 10.0
                retry_after = min(60.0, max(0.05, 1 / slowest) * 2.0 ** (self._unlucky - 1))
        if retry_after is not None:
            self.hold(now, retry_after)

    def _slow_down(self, now: float) -> None:
        if self._is_told:
            return  # The server's own report is better.
        if self._bucket is None:
            rate = _DEEP_CUT * self._sent / max(now - self._refused_at, 0.1)
        else:
            is_far = self._is_starting or self._sent < _FEW
            rate = self._bucket.rate * (_DEEP_CUT if is_far else _CUT)
            self._is_starting = False
        self._bucket = Bucket(rate, 1.0, max(now, self.not_before))

    def hold(self, now: float, seconds: float) -> None:
        """Send nothing for some seconds, as a server asked."""
        # Random, so that several processes do not ask the same server at the same moment.
        self.not_before = max(self.not_before, now + seconds * (1 + 0.05 * self._random.random()))
        if self._bucket is not None:
            self._bucket.at = max(self._bucket.at, self.not_before)

    def hear(self, total: float, left: float, reset_seconds: float, on_the_way: int, now: float) -> None:
        """Learn from the limits that a server reported with an answer, with `on_the_way` other requests in
        flight."""
        if left < total and reset_seconds > 0:
            known = self._bucket if self._is_told else None
            self._bucket, self._is_told = follow(known, total, left, reset_seconds, on_the_way, now), True


class Concurrency:
    """The number of requests that a server can handle at the same time, found by trying.

    After every window of some answers the number is changed, and the new rate of answers is compared with the old
    one. A higher number is kept if the rate rises, and a lower one if the rate does not fall. At first the number
    doubles, later it changes by a tenth. Windows in which something else delayed requests are ignored.
    """

    def __init__(self, *, limit: int, maximum: int) -> None:
        self.limit = min(limit, maximum)
        self._maximum = maximum
        self._is_starting = True
        self._count = 0
        self._in_flight = 0
        self._begin: float | None = None
        self._is_full = True
        """True if only this limit delayed requests in the current window."""
        self._best: tuple[int, float] | None = None
        """The best number so far, and its answers per second."""
        self._rest = 0
        """The number of windows until another limit is tried."""
        self._tries = 0
        self._direction = 1

    def answer(self, now: float, in_flight: int, *, is_full: bool) -> None:
        """Record an answer to one of `in_flight` requests. `is_full` is true if other requests wait only for this
        limit."""
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
        # If fewer requests are in flight than allowed, the callers set the rate, unless there are more than before.
        if self._is_full or (self._best is not None and tried > self._best[0] * 1.05):
            self._decide(rate, tried)
        self._forget()

    def _forget(self) -> None:
        self._begin, self._count, self._in_flight, self._is_full = None, 0, 0, True

    def overload(self) -> None:
        """Record that the server is overloaded."""
        self.limit = max(1, int(self.limit * 0.7))
        self._is_starting = False
        self._best = None
        self._forget()
        self._rest = 5

    def _size(self) -> int:
        # The first answers of a window belong to requests that were sent before it.
        return 2 * self.limit if self._is_starting else 3 * self.limit

    def _decide(self, rate: float, tried: float) -> None:
        if self._best is None:
            self._best = (self.limit, rate)
            self._try()
            return
        limit, best = self._best
        if self.limit == limit:
            # Nothing was tried, so this is a newer measure of the same number.
            self._best = (limit, best + 0.3 * (rate - best))
            self._rest -= 1
            if self._rest <= 0:
                self._try()
            return
        more = rate / best - 1
        asked = tried / limit - 1
        # A higher number must give at least half of the expected gain; a lower one may lose only a little.
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
        # The more tries failed in a row, the longer the pause.
        self._rest = min(4 * 2 ** min(self._tries, 4), 60)

    def _try(self) -> None:
        assert self._best is not None
        if self._is_starting:
            self.limit = min(self._maximum, self.limit * 2)
            return
        step = max(1, self.limit // 10)
        self.limit = max(1, min(self._maximum, self.limit + self._direction * step))
