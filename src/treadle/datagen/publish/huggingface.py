"""The upload of a dataset to the Hugging Face Hub.

Source: huggingface_hub 2.4. The token comes from `HF_TOKEN` or from `hf auth login`, and the address of the Hub
from `HF_ENDPOINT`.
"""

import re
from typing import Any

from treadle.core.errors import ConfigError, PublishError
from treadle.core.registry import require
from treadle.datagen.publish.upload import Upload

_DATA = re.compile(r"\w+\.\w+\.(jsonl|parquet)|\w+\.hf_trace/.*")
"""The files of splits."""


def publish(upload: Upload, *, is_update: bool = False) -> str:
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
        raise _explain(error, upload, is_new=is_new) from error
    return f"{api.endpoint}/datasets/{target.path}"


def _create(api: Any, errors: Any, upload: Upload, *, is_update: bool) -> bool:
    """Create the repository, and return whether it is new. Raises: `ConfigError` if it exists."""
    try:
        api.create_repo(upload.target.path, repo_type="dataset", private=upload.is_private)
    except errors.HfHubHTTPError as error:
        if _status(error) != 409:
            raise
        if not is_update:
            raise ConfigError(
                f"the dataset {upload.target.path!r} exists on the Hub; add a version with --update, or choose "
                "another name"
            ) from error
        return False
    return True


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _explain(error: Exception, upload: Upload, *, is_new: bool) -> PublishError:
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
