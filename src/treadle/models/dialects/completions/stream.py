"""The collector of streamed completions: it joins the chunks to the raw object of a whole answer."""

from collections.abc import Callable

from treadle.core.events import Delta, TextDelta
from treadle.core.types import Json
from treadle.models.wire.server import Server, explain_error, find_error
from treadle.models.wire.stream import Collector


class TextCollector(Collector):
    """A collector for one streamed completion."""

    def __init__(self, on_delta: Callable[[Delta], None], server: Server) -> None:
        super().__init__(on_delta, server)
        self._head: dict[str, Json] = {}
        self._choice: dict[str, Json] = {}
        self._is_odd = False
        """True if an object came that is not a chunk."""
        self._texts: list[str] = []
        self._lists: dict[str, list[Json]] = {}

    @property
    def is_complete(self) -> bool:
        return bool(self._choice.get("finish_reason"))

    def end(self) -> None:
        # Without a finish reason, an object that is not a chunk may have said what went wrong.
        self.is_done = self.is_complete or not self._is_odd

    def add(self, event: Json) -> None:
        if (error := find_error(event)) is not None:
            raise explain_error(self._server, 200, error)
        self._is_odd = self._is_odd or not ("choices" in event or "usage" in event)
        for name, value in event.items():
            if name != "choices" and value is not None:
                self._head[name] = value
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Json]) -> None:
        for name, value in choice.items():
            if name == "text":
                if value:
                    if type(value) is not str:
                        raise TypeError("the text is not text")
                    self._texts.append(value)
                    self._on_delta(TextDelta(value))
            elif name == "token_ids" and value is not None:
                self._lists.setdefault(name, []).extend(value)
            elif name == "logprobs" and isinstance(value, dict):
                for key in ("tokens", "token_logprobs"):
                    self._lists.setdefault(key, []).extend(value.get(key) or ())
            elif value is not None and value != "":
                self._choice[name] = value

    def raw(self) -> Json:
        choice = {**self._choice, "text": "".join(self._texts)}
        if "token_ids" in self._lists:
            choice["token_ids"] = self._lists["token_ids"]
        if "token_logprobs" in self._lists:
            choice["logprobs"] = {key: self._lists[key] for key in ("tokens", "token_logprobs")}
        return {**self._head, "choices": [choice]}
