"""The upload of a dataset to the Hugging Face Hub and to Kaggle.

Source: huggingface_hub 2.4, with the token from `HF_TOKEN` or `hf auth login` and the address of the Hub from
`HF_ENDPOINT`; kaggle 2.2, with the token from `KAGGLE_API_TOKEN` or the files that Kaggle's own client reads.
"""

import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from treadle.core.errors import ConfigError, PublishError
from treadle.core.registry import require
from treadle.core.texts.documents import decode_document
from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig, Topics
from treadle.datagen.config.loading import read_config
from treadle.datagen.dataset.card import OTHER, license_on, make_card
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


_DATA = re.compile(r"\w+\.\w+\.(jsonl|parquet)|\w+\.hf_trace/.*")
"""The files of splits."""


def publish_on_hub(upload: Upload, *, is_update: bool = False) -> str:
    """Upload a dataset, and return its address. `is_update` adds a version to a dataset that exists.

    Raises: `ConfigError` if the client is not installed, there is no token, or the dataset exists and not
    `is_update`; `PublishError` if the Hub refuses or cannot be reached.
    """
    hub = require("huggingface_hub", "hub")
    errors = require("huggingface_hub.errors", "hub")
    if hub.get_token() is None:
        raise ConfigError("there is no token for the Hugging Face Hub; set HF_TOKEN, or run: hf auth login")
    # The caller shows a spinner, which the client's progress bars would disturb.
    require("huggingface_hub.utils", "hub").disable_progress_bars()
    api = hub.HfApi(library_name="treadle")
    target = upload.target
    is_new = False
    try:
        is_new = _create(api, errors, upload, is_update=is_update)
        known = [] if is_new else api.list_repo_files(target.path, repo_type="dataset")
        names = {file.name for file in upload.files}
        operations = [
            *[
                hub.CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=file.content)
                for file in upload.files
            ],
            *[
                hub.CommitOperationDelete(path_in_repo=name)
                for name in known
                if name not in names and _DATA.fullmatch(name)
            ],
        ]
        api.create_commit(target.path, operations, commit_message=upload.notes, repo_type="dataset")
    except errors.HFValidationError as error:
        raise ConfigError(f"the Hub does not allow the name {target.path!r}: {error}") from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise _explain_hub(error, upload, is_new=is_new) from error
    return f"{api.endpoint}/datasets/{target.path}"


def _create(api: Any, errors: Any, upload: Upload, *, is_update: bool) -> bool:
    """Create the repository, and return whether it is new. Raises: `ConfigError` if it exists."""
    try:
        api.create_repo(upload.target.path, repo_type="dataset", private=upload.is_private)
    except errors.HfHubHTTPError as error:
        if _status(error) != 409:
            raise
        if not is_update:
            raise _exists("the Hub", upload) from error
        return False
    return True


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _exists(service: str, upload: Upload) -> ConfigError:
    path = upload.target.path
    return ConfigError(
        f"the dataset {path!r} exists on {service}; add a version with --update, or choose another name"
    )


def _explain_hub(error: Exception, upload: Upload, *, is_new: bool) -> PublishError:
    """Return an error that says what to do."""
    path, status = upload.target.path, _status(error)
    said = str(getattr(error, "server_message", None) or error).strip().splitlines()[0]
    if status == 401:
        return PublishError(
            f"the Hub does not accept the token: {said}; set another HF_TOKEN, or run: hf auth login"
        )
    if status == 403:
        return PublishError(
            f"the token may not write to {path!r}: {said}; use a token with write access to {upload.target.owner!r}"
        )
    after = f"; {path!r} was created and is empty, so run the command again with --update" if is_new else ""
    return PublishError(f"the upload to the Hub failed: {said}{after}")


_LEAST_CHARS, _MOST_CHARS = 6, 50
"""The smallest and the largest length of titles and names on Kaggle."""
METADATA = "dataset-metadata.json"


def publish_on_kaggle(upload: Upload, *, is_update: bool = False) -> str:
    """Upload a dataset, and return its address. `is_update` adds a version to a dataset that exists.

    Raises: `ConfigError` if the client is not installed, there is no token, the name is too short, or the dataset
    exists and not `is_update`; `PublishError` if Kaggle refuses or cannot be reached.
    """
    if not _LEAST_CHARS <= len(upload.target.name) <= _MOST_CHARS:
        # Kaggle's client would refuse it only after it has asked for a token.
        raise ConfigError(
            f"the name {upload.target.name!r} must have {_LEAST_CHARS} to {_MOST_CHARS} characters for Kaggle"
        )
    api = _open(upload)
    with tempfile.TemporaryDirectory() as name, _quiet():
        folder = Path(name)
        write_folder(upload, folder)
        try:
            if is_update:
                found = api.dataset_create_version(
                    str(folder), upload.notes, quiet=True, convert_to_csv=False, dir_mode="zip"
                )
            else:
                found = api.dataset_create_new(
                    str(folder),
                    public=not upload.is_private,
                    quiet=True,
                    convert_to_csv=False,
                    dir_mode="zip",
                )
        except (OSError, ValueError) as error:  # the errors of requests are OSErrors
            raise _explain_kaggle(error, upload) from error
    if said := getattr(found, "error", None):
        if "already in use" in said:
            raise _exists("Kaggle", upload)
        raise PublishError(f"the upload to Kaggle failed: {said}")
    return f"https://www.kaggle.com/datasets/{upload.target.path}"


def write_folder(upload: Upload, folder: Path) -> None:
    """Write the files and Kaggle's metadata to a folder. Files on the disk become links."""
    for file in upload.files:
        place = folder / file.name
        place.parent.mkdir(exist_ok=True)
        if file.source is None:
            place.write_text(file.text, "utf-8")
            continue
        try:
            os.symlink(file.source.resolve(), place)
        except OSError:
            shutil.copyfile(file.source, place)
    (folder / METADATA).write_text(json.dumps(make_metadata(upload), indent=1), "utf-8")


def make_metadata(upload: Upload) -> dict[str, Json]:
    """Return Kaggle's metadata of a dataset."""
    license = license_on("kaggle", upload.license)
    note = f"Licence: {upload.license}\n\n" if license == OTHER else ""
    title = upload.title if len(upload.title) >= _LEAST_CHARS else f"{upload.title} dataset"
    return {
        "title": title[:_MOST_CHARS],
        "id": upload.target.path,
        "licenses": [{"name": license}],
        "description": note + upload.card,
        "keywords": list(upload.tags),
    }


def _open(upload: Upload) -> Any:
    """Return the client. Raises: `ConfigError`, `PublishError`."""
    with _quiet():
        try:
            api = require("kaggle.api.kaggle_api_extended", "hub").KaggleApi()
            api.authenticate()
        except SystemExit:
            raise ConfigError(
                "there is no token for Kaggle; set KAGGLE_API_TOKEN, or KAGGLE_USERNAME and KAGGLE_KEY"
            ) from None
        except OSError as error:
            raise _explain_kaggle(error, upload) from error
    return api


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of Kaggle's client."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _explain_kaggle(error: Exception, upload: Upload) -> PublishError:
    """Return an error that says what to do."""
    status, response = _status(error), getattr(error, "response", None)
    said = (str(error).strip() or repr(error)).splitlines()[0]
    with contextlib.suppress(Exception):
        said = response.json()["message"]  # type: ignore[union-attr]
    if status == 401:
        return PublishError(f"Kaggle does not accept the token: {said}; set another KAGGLE_API_TOKEN")
    if status in (403, 404):
        return PublishError(
            f"the token may not write to {upload.target.path!r}, or there is no such dataset: {said}"
        )
    return PublishError(f"the upload to Kaggle failed: {said}")
