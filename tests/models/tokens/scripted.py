"""An engine that returns scripted answers as ids, split in ways that the tokenizer would not."""

import random
from collections.abc import Sequence

from treadle.core.tokens.packed import pack_ids, pack_logprobs
from treadle.core.types import FinishReason, Settings
from treadle.models.protocol import Watch
from treadle.models.tokens.protocol import Generated
from treadle.renderers.protocol import Renderer


class ScriptedEngine:
    """An engine for tests. It keeps the prompts that it was sent."""

    name = "scripted"

    def __init__(self, renderer: Renderer, answers: Sequence[object], *, chunk: int = 3) -> None:
        """Make an engine. An answer is a text, which ends with the end of a turn, a whole `Generated`, or an
        error."""
        self.prompts: list[tuple[int, ...]] = []
        self.settings: list[Settings] = []
        self.returned: list[Generated] = []
        self._renderer = renderer
        self._answers = list(answers)
        self._chunk = chunk
        self._random = random.Random(1)

    async def generate(
        self, prompt_ids: Sequence[int], settings: Settings, stop_token_ids: Sequence[int], watch: Watch
    ) -> Generated:
        answer = self._answers[len(self.prompts)]
        self.prompts.append(tuple(prompt_ids))
        self.settings.append(settings)
        if isinstance(answer, Exception):
            raise answer
        made = answer if isinstance(answer, Generated) else self.sampled(str(answer), stop_token_ids[:1])
        self.returned.append(made)
        ids = memoryview(made.token_ids).cast("i").tolist()
        if watch.on_token_ids is not None:
            for begin in range(0, len(ids), self._chunk):
                watch.on_token_ids(ids[begin : begin + self._chunk])
        return made

    def sampled(
        self,
        text: str,
        end: Sequence[int] = (),
        finish: FinishReason | None = FinishReason.STOP,
        **more: object,
    ) -> Generated:
        """Return `text` as ids that a model may sample, with logprobs that tell their position."""
        ids: list[int] = []
        while text:
            size = self._random.randint(1, 4)
            ids += self._renderer.encode(text[:size])
            text = text[size:]
        ids += end
        logprobs = pack_logprobs([-(at + 1) / 64 for at in range(len(ids))])
        return Generated(
            token_ids=pack_ids(ids), logprobs=logprobs, finish=finish, engine="scripted 1", **more
        )
