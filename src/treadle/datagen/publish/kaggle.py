"""The upload of a dataset to Kaggle.

Source: kaggle 2.2. The token comes from `KAGGLE_API_TOKEN`, or from the files that Kaggle's own client reads.
"""

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError, PublishError
from treadle.core.registry import require
from treadle.core.types import Json
from treadle.datagen.dataset.licenses import OTHER, kaggle_license
from treadle.datagen.publish.upload import Upload

_LEAST_CHARS, _MOST_CHARS = 6, 50
"""The smallest and the largest length of titles and names on Kaggle."""
METADATA = "dataset-metadata.json"


def publish(upload: Upload, *, is_update: bool = False) -> str:
    """Upload a dataset, and return its address. `is_update` adds a version to a dataset that exists.

    Raises: `ConfigError` if the client is not installed, there is no token, the name is too short, or the dataset
    exists and not `is_update`; `PublishError` if Kaggle refuses or cannot be reached.
    """
    _check(upload)
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
            raise _explain(error, upload) from error
    if said := getattr(found, "error", None):
        if "already in use" in said:
            raise ConfigError(
                f"the dataset {upload.target.path!r} exists on Kaggle; add a version with --update, or choose "
                "another name"
            )
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
    license = kaggle_license(upload.license)
    note = f"Licence: {upload.license}\n\n" if license == OTHER else ""
    title = upload.title if len(upload.title) >= _LEAST_CHARS else f"{upload.title} dataset"
    return {
        "title": title[:_MOST_CHARS],
        "id": upload.target.path,
        "licenses": [{"name": license}],
        "description": note + upload.card,
        "keywords": list(upload.tags),
    }


def _check(upload: Upload) -> None:
    """Check the name, which Kaggle's client would refuse only after it has asked for a token. Raises:
    `ConfigError`."""
    if not _LEAST_CHARS <= len(upload.target.name) <= _MOST_CHARS:
        raise ConfigError(
            f"the name {upload.target.name!r} must have {_LEAST_CHARS} to {_MOST_CHARS} characters for Kaggle"
        )


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
            raise _explain(error, upload) from error
    return api


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output of Kaggle's client."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _explain(error: Exception, upload: Upload) -> PublishError:
    """Return an error that says what to do."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    said = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
    with contextlib.suppress(Exception):
        said = response.json()["message"]  # type: ignore[union-attr]
    if status == 401:
        return PublishError(f"Kaggle does not accept the token: {said}; set another KAGGLE_API_TOKEN")
    if status in (403, 404):
        return PublishError(
            f"the token may not write to {upload.target.path!r}, or there is no such dataset: {said}"
        )
    return PublishError(f"the upload to Kaggle failed: {said}")
