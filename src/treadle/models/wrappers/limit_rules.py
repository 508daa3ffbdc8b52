"""The rules of a limiter: how fast to send, and how many requests at a time.

The rules are pure: the time is an argument, in seconds. A server that limits requests is modelled as a bucket
that fills at a constant rate. A refusal means that the bucket is empty. The rate is therefore the number of
requests that were accepted between two refusals, divided by the time between them.
"""

import math
from random import Random

_SAFETY = 0.985
"""The fraction of the learned rate that is used, so that requests are hardly ever refused."""
_DOUBLING_SECONDS = 0.7
"""The time in which the rate doubles while it is not learned."""
_HOLD_SECONDS = 5.0
_HOLD_WAITS = 60
"""How long a learned rate is kept before a higher one is tried, in multiples of the wait after a refusal."""
_GROWTH = 0.004
"""The growth of the rate in each second after that, as a fraction."""
_CHANGED = 0.85
"""An estimate below this fraction of the learned rate means that the limit has changed."""
_FEW = 5
"""The number of requests below which nothing is learned."""
_TRUSTED = 100
"""The number of requests from which a rate is fully trusted."""
_MEMORY = 2_000
"""The number of requests over which a learned rate is averaged."""


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
    """The rate of requests that a server accepts, learned from its refusals and from its headers."""

    def __init__(self, now: float, random: Random | None = None) -> None:
        self.rate: float | None = None
        """The learned rate, in requests per second; `None`: not learned yet."""
        self.not_before = now
        """The time before which nothing is sent."""
        self.refusals = 0
        """How often the bucket was found empty, however many requests were refused each time."""
        self._random = random or Random()
        self._bucket: Bucket | None = None
        self._empty_at = now
        """When the bucket was last found empty, or the first request was sent."""
        self._resumed_at = now
        self._accepted = 0
        """How many requests were accepted since then."""
        self._waited = 0.0
        self._before: tuple[float, float, float] | None = None
        """The period before the last refusal: accepted requests, its seconds, and the seconds of waiting in it."""
        self._first: tuple[float, float] | None = None
        """The first period: accepted requests and seconds. It includes the content of the full bucket."""
        self._weight = 0.0
        """The number of requests that the learned rate is based on."""
        self._borne: float | None = None
        """The rate that was accepted before a higher one was tried."""
        self._doubling_seconds = _DOUBLING_SECONDS
        self._unlucky = 0
        """How many consecutive requests were refused."""
        self._told_at: float | None = None

    def wait(self, now: float) -> float:
        """Return the seconds until the next request may be sent."""
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
        """Record that a request is sent."""
        if not self._accepted and not self.refusals:
            self._empty_at = now
        self._accepted += 1
        if self._bucket is not None:
            self._bucket.fill(now)
            self._bucket.take(1)

    def succeed(self) -> None:
        """Record that a request was answered."""
        self._unlucky = 0

    def refuse(self, sent_at: float, now: float, retry_after: float | None) -> None:
        """Record that a request was refused. `retry_after` is the delay that the server asked for, in seconds."""
        is_known = self.refusals > 0 and sent_at < self._empty_at
        if is_known:
            # This request was already sent when the first refusal came.
            if self._before is not None:
                accepted, seconds, waited = self._before
                self._before = (accepted - 1, seconds, waited)
            if retry_after is None:
                return
        else:
            # Both ends of a later period include the way to the server and back; the first one begins without it.
            seconds = (now if self.refusals else sent_at) - self._empty_at
            self.refusals += 1
            self._unlucky += 1
            self._before = (self._accepted - 1, seconds, self._waited)
            self._empty_at, self._accepted = now, 0
            if retry_after is None:
                slowest = self.rate or 10.0
                retry_after = min(60.0, max(0.05, 1 / slowest) * 2.0 ** (self._unlucky - 1))
        self.hold(now, retry_after)
        self._waited = self.not_before - self._empty_at

    def hold(self, now: float, seconds: float) -> None:
        """Send nothing for some seconds, as a server asked."""
        # Random, so that several processes do not ask the same server at the same moment.
        self.not_before = max(self.not_before, now + seconds * (1 + 0.05 * self._random.random()))

    def hear(self, total: float, left: float, reset_seconds: float, on_the_way: int, now: float) -> None:
        """Learn from the limits that a server reported, with `on_the_way` other requests in flight."""
        if left >= total or reset_seconds <= 0:
            return
        if self._told_at is None:
            self._bucket = None
        self._bucket = follow(self._bucket, total, left, reset_seconds, on_the_way, now)
        self.rate, self._told_at = self._bucket.rate, now

    def _judge(self, now: float) -> None:
        """Learn from the period before the last refusal, when all its requests have been answered."""
        assert self._before is not None
        accepted, seconds, waited = self._before
        self._before = None
        self._resumed_at = now
        if self._told_at is not None:
            return  # The server's own report is better.
        if self._first is None:
            self._first = (accepted, max(seconds, 1e-3))
            # Begin with half of the rate that was too much, and double it until it is too much again.
            guess = max(0.5 * accepted / max(seconds, 0.1), 1.0)
            self._restart(guess, max(1.0, accepted * 0.7), now)
            return
        rate, counted = self._estimate(accepted, seconds, waited) if accepted > 0 else (0.0, 0.0)
        assert self._bucket is not None
        if counted < (_FEW if self.rate is None else 1):
            # Too few requests to learn a rate from; but it was too much, so continue lower and more slowly.
            self._doubling_seconds *= 1.7
            self._restart(max(self._bucket.rate * 0.75, 1e-3), self._bucket.capacity, now)
            return
        if self.rate is None or rate < self.rate * _CHANGED:
            # Nothing was known, or the limit has changed.
            self.rate, self._weight = rate, 0.0
        else:
            self.rate += (rate - self.rate) * counted / (counted + self._weight)
        self._weight = min(self._weight + counted, _MEMORY)
        burst = max(0.0, self._first[0] - self.rate * self._first[1])
        if self._borne is not None and burst < 3:
            # A bucket that holds almost nothing ran over before the refusal, so the estimate is too low. But the
            # refusal came only after the rate was raised: the limit lies between the two rates.
            self.rate = max(self.rate, (self._borne + self._bucket.rate) / 2)
        held = min(burst, self.rate * (now - self._empty_at))
        # The count may be off by one, which matters if it is small; so try a little more.
        doubt = min(0.5, 0.8 / self._weight)
        self._restart(self.rate * (_SAFETY + doubt), max(1.0, burst * 0.8), now, held * 0.8)

    def _estimate(self, accepted: float, seconds: float, waited: float) -> tuple[float, float]:
        """Return the rate of a period, and the number of requests that it is based on. The server accepted
        `accepted` requests in `seconds`; during `waited` of these seconds nothing was sent. Meanwhile the bucket
        filled up, at most to its capacity, which is the number of requests before the first refusal."""
        assert self._first is not None
        count, first_seconds = self._first
        low, high = accepted / seconds, accepted / max(seconds - waited, 1e-3)
        rate, counted = low, accepted
        if low * waited > max(count - low * first_seconds, 0.0):
            active = seconds - waited - first_seconds
            if active > 0.1 * seconds and accepted > count:
                rate, counted = (accepted - count) / active, accepted - count
        return min(max(rate, low), high), float(counted)

    def _restart(self, rate: float, capacity: float, now: float, level: float | None = None) -> None:
        self._borne = None
        self._bucket = Bucket(rate, capacity, now)
        self._bucket.level = min(capacity, level if level is not None else 1.0)

    def _raise(self, now: float) -> None:
        """Raise the rate if nothing was refused for some time."""
        bucket = self._bucket
        assert bucket is not None
        if self._told_at is not None:
            return
        seconds = now - bucket.at
        if self.rate is None:
            bucket.rate *= 2 ** (seconds / self._doubling_seconds)
            return
        # A rate that was learned from few requests is tested earlier.
        trust = min(1.0, self._weight / _TRUSTED)
        if now - self._resumed_at > (_HOLD_SECONDS + _HOLD_WAITS * self._waited) * trust:
            if self._borne is None:
                self._borne = bucket.rate
            bucket.rate *= 1 + _GROWTH * seconds / trust


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
        """Record an answer to one of `in_flight` requests. `is_full`: other requests wait only for this limit."""
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
