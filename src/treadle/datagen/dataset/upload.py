"""The files of an upload, and the places to upload to. This module does not use the network."""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from treadle.core.documents import decode_document
from treadle.core.errors import ConfigError
from treadle.datagen.config.generation_config import GenerationConfig, Topics
from treadle.datagen.config.loading import read_config
from treadle.datagen.dataset.card import license_on, make_card
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_stats import collect
from treadle.datagen.dataset.splits import read_written

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
CARD = "README.md"
"""The name of the card."""


class Service(StrEnum):
    """A place for datasets."""

    HUGGINGFACE = "huggingface"
    KAGGLE = "kaggle"


class UploadTarget(Struct, frozen=True):
    """A dataset in a service."""

    service: Service
    owner: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "UploadTarget":
        """Return the target in a text such as `huggingface:OWNER/NAME`. Raises: `ConfigError`."""
        service, _, path = text.partition(":")
        owner, _, name = path.partition("/")
        if service not in list(Service) or not _NAME.fullmatch(owner) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{text!r} is not a place to publish to; write huggingface:OWNER/NAME or kaggle:OWNER/NAME"
            )
        return cls(Service(service), owner, name)

    @property
    def path(self) -> str:
        """The owner and the name, as in the service's addresses."""
        return f"{self.owner}/{self.name}"

    def __str__(self) -> str:
        return f"{self.service}:{self.path}"


class UploadFile(Struct, frozen=True):
    """One file to upload: a file on the disk, or a text."""

    name: str
    """The path in the repository."""
    source: Path | None = None
    """The file on the disk; `None` if `text` is uploaded."""
    text: str = ""

    @property
    def size_bytes(self) -> int:
        """The size of the content."""
        return len(self.text.encode()) if self.source is None else self.source.stat().st_size

    @property
    def content(self) -> str | bytes:
        """The form that the clients of the services accept: a path, or the content."""
        return self.text.encode() if self.source is None else str(self.source)


class Upload(Struct, frozen=True, kw_only=True):
    """A dataset that is ready to be uploaded."""

    target: UploadTarget
    license: str
    """The licence that the user named."""
    title: str
    files: tuple[UploadFile, ...]
    is_private: bool = False
    tags: tuple[str, ...] = ()
    notes: str = ""
    """What is new in this version."""

    @property
    def card(self) -> str:
        """The text of the card without its metadata."""
        text = next(file for file in self.files if file.name == CARD)
        content = text.text if text.source is None else text.source.read_text("utf-8")
        return re.sub(r"\A---\n.*?\n---\n+", "", content, flags=re.DOTALL)


class UploadOptions(Struct, frozen=True, kw_only=True):
    """The user's options of a publication. `None` means the value in the dataset's configuration."""

    license: str | None = None
    is_private: bool | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    keeps_card: bool = False
    """True to upload the card unchanged from the folder."""
    has_report: bool = False
    """True to upload the report too."""


def find_targets(config: GenerationConfig) -> list[UploadTarget]:
    """Return the places that a configuration names."""
    publish = config.publish
    named = []
    if publish.huggingface is not None:
        named.append(f"{Service.HUGGINGFACE}:{publish.huggingface.repository}")
    if publish.kaggle is not None:
        named.append(f"{Service.KAGGLE}:{publish.kaggle.handle}")
    return [UploadTarget.parse(text) for text in named]


def read_or_default(folder: Path) -> GenerationConfig:
    """Return the configuration of a dataset.

    If the dataset has no configuration, as a merged dataset, return a configuration that has only the dataset's
    name.
    """
    return read_config(folder) or GenerationConfig.model_construct(
        name=folder.resolve().name, topics=Topics()
    )


def prepare(folder: Path, target: UploadTarget, options: UploadOptions) -> Upload:
    """Return what to upload of a dataset's folder.

    Raises: `ConfigError` if no licence was named, or if the splits are missing.
    """
    config = read_or_default(folder)
    license = options.license or config.publish.license
    if not license or not license.strip():
        raise ConfigError(
            "a dataset needs a licence to be published, and only you can choose it; name it with --license, such "
            "as --license CC-BY-4.0, or as publish.license in the configuration"
        )
    section = config.publish.huggingface if target.service is Service.HUGGINGFACE else config.publish.kaggle
    tags = tuple(dict.fromkeys((*(section.tags if section is not None else ()), *options.tags)))
    files = list(_find_files(folder, has_report=options.has_report))
    if options.keeps_card:
        card = UploadFile(CARD, _check_card(DatasetFolder(folder).card, license.strip()))
    else:
        named = config.model_copy(
            update={"publish": config.publish.model_copy(update={"license": license.strip()})}
        )
        card = UploadFile(CARD, text=make_card(folder, named, collect(folder), tags))
    is_private = options.is_private
    if is_private is None:
        is_private = config.publish.huggingface is not None and config.publish.huggingface.private
    kaggle = config.publish.kaggle
    notes = options.notes or (kaggle.version_notes if kaggle is not None else "")
    return Upload(
        target=target,
        license=license.strip(),
        title=config.name,
        files=(card, *files),
        is_private=is_private,
        tags=tags,
        notes=notes or "A new version",
    )


def _check_card(path: Path, license: str) -> Path:
    """Return the path of the card, which must name the licence that the user named. Raises: `ConfigError`."""
    if not path.is_file():
        raise ConfigError(f"--keep-card: there is no {str(path)!r}; leave the option out")
    found = re.match(r"---\n(.*?)\n---\n", path.read_text("utf-8"), re.DOTALL)
    meta = decode_document(found[1].encode(), str(path), is_yaml=True) if found else None
    said = (meta.get("license_name") or meta.get("license")) if isinstance(meta, dict) else None
    if said not in (license, license_on("hub", license)):
        raise ConfigError(
            f"--keep-card: {str(path)!r} names the licence {said!r}, and not {license!r}; change one of them"
        )
    return path


def _find_files(folder: Path, *, has_report: bool) -> Iterator[UploadFile]:
    """Yield the files of the splits, the topics, and the report if it is wanted. Raises: `ConfigError`."""
    written = read_written(folder).files
    if not written:
        raise ConfigError(
            f"{str(folder)!r} has no splits to upload; write them with: treadle dataset split {folder}"
        )
    for file in written:
        place = folder / file.name
        if place.is_dir():
            yield from (UploadFile(f"{file.name}/{item.name}", item) for item in sorted(place.iterdir()))
        elif place.is_file():
            yield UploadFile(file.name, place)
        else:
            raise ConfigError(f"the file {str(place)!r} is missing; write the splits again")
    for place, is_wanted in (
        (DatasetFolder(folder).topics, True),
        (DatasetFolder(folder).report, has_report),
    ):
        if is_wanted and place.is_file():
            yield UploadFile(place.name, place)
