"""The ids of a prompt, as they are stored and as they are sent, so that a step does not convert all of them."""

from collections.abc import Iterator, Sequence
from typing import overload

from treadle.core.packed import count_packed, pack_ids, view_ids
from treadle.models.wire.tokens import KnownTexts, encode_ids


class PromptIds(Sequence[int]):
    """The ids of a prompt. They are unpacked only if somebody looks at them."""

    __slots__ = ("packed", "text")

    def __init__(self, packed: bytes, text: bytes) -> None:
        self.packed = packed
        """The ids, packed."""
        self.text = text
        """The ids as JSON without the brackets."""

    @classmethod
    def of(cls, ids: Sequence[int]) -> "PromptIds":
        """Return `ids` as a prompt."""
        return ids if isinstance(ids, PromptIds) else cls(pack_ids(ids), encode_ids(list(ids)))

    @classmethod
    def after(cls, prior: bytes, ids: Sequence[int], texts: KnownTexts) -> "PromptIds":
        """Return the prompt of the packed ids `prior` and then `ids`."""
        text = texts.find(prior) or encode_ids(list(view_ids(prior)))
        return cls(prior + pack_ids(ids), b",".join([item for item in (text, encode_ids(ids)) if item]))

    def __len__(self) -> int:
        return count_packed(self.packed)

    def __iter__(self) -> Iterator[int]:
        return iter(view_ids(self.packed))

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return view_ids(self.packed)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PromptIds({list(self)!r})"
