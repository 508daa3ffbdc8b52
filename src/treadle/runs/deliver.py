"""The delivery of messages that the user sends while a run is being driven."""

from collections.abc import Mapping

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.types import Delivery, Message, Role
from treadle.loop.driver import Driver


def deliver(
    driver: Driver, message: Message, delivery: Delivery, blobs: Mapping[str, bytes] | None = None
) -> int:
    """Append a message of the user, and return the number of its event."""
    driver.put(e.MessageInjected(message=message, delivery=delivery), blobs=blobs or None)
    return driver.state.seq


class Driven:
    """The run of a stream, which can be sent messages while it is driven."""

    def __init__(self) -> None:
        self._driver: Driver | None = None

    def hold(self, driver: Driver) -> None:
        """Keep the driver of the run."""
        self._driver = driver

    def steer(self, text: str) -> None:
        """Send a message that the model sees at its next step. Raises: `ConfigError` if nobody drives the run."""
        if self._driver is None or not self._driver.state.turn.is_open:
            state = "has not begun" if self._driver is None else "is over"
            raise ConfigError(f"the message {text!r:.80} cannot be sent: the run {state}")
        deliver(self._driver, Message(Role.USER, text), Delivery.STEER)
