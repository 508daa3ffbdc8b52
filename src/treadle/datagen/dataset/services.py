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
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError, PublishError
from treadle.core.registry import require
from treadle.core.types import Json
from treadle.datagen.dataset.card import OTHER, license_on
from treadle.datagen.dataset.upload import Upload

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
