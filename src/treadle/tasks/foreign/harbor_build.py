"""The image of a task: what its Dockerfile makes if the sandbox can have that, else one that is built or pulled."""

import os
import re
import time
from collections.abc import Mapping

from treadle.core.errors import ConfigError, SandboxError
from treadle.sandbox.commands.host import find_fault
from treadle.sandbox.commands.images import (
    BUILDER_VARIABLE,
    FOLDER_VARIABLE,
    NoBuilderError,
    build_image,
    digest_build,
    find_image_fault,
    open_image,
)
from treadle.tasks.foreign.harbor_dockerfile import ImageBuild, find_folder, read_image
from treadle.tasks.foreign.harbor_image import Image
from treadle.tasks.foreign.installers import NAMES

_REMEMBERED_SECONDS = 600
"""How long a failure of an image is remembered. A command lists the same tasks several times."""
_FAILED: dict[tuple[object, ...], tuple[float, str]] = {}
"""When images could not be made, and why, by all that an image is made from."""


def find_image(build: ImageBuild, settings: Mapping[str, object]) -> Image:
    """Return what a Dockerfile makes: as files for the sandbox if these will do, else as an image
    that Docker or Podman builds or pulls. `settings` are those of the environment in `task.toml`.

    An image that could not be made is not tried again for `_REMEMBERED_SECONDS`, unless its folder changes.
    Raises: `ConfigError` that says why neither can be had.
    """
    _check_entry(build)
    folder = find_folder(settings)
    try:
        return read_image(build, settings)
    except ConfigError as error:
        refusal = error
    given = settings.get("docker_image")
    if not given and not build.dockerfile.is_file():
        raise refusal
    if (fault := find_fault() or find_image_fault()) is not None:
        raise ConfigError(f"{refusal}; images cannot be used here: {fault}")
    seconds = settings.get("build_timeout_sec", 600.0)
    limit = float(seconds) if isinstance(seconds, int | float) else 600.0
    place = [os.environ.get(name) for name in (BUILDER_VARIABLE, FOLDER_VARIABLE)]
    key = (given or digest_build(build.context, build.dockerfile), limit, *place)
    failed_at, why = _FAILED.get(key, (0.0, ""))
    if why and time.monotonic() - failed_at < _REMEMBERED_SECONDS:
        raise ConfigError(why)
    try:
        root = open_image(str(given or build_image(build.context, limit, build.dockerfile)))
    except NoBuilderError as error:
        raise ConfigError(f"{refusal}; {error}") from None
    except (ConfigError, SandboxError) as error:
        why = f"{refusal}; {error}"
        _FAILED[key] = time.monotonic(), why
        raise ConfigError(why) from error
    return Image(folder=folder or root.begin, root=root)


def _check_entry(build: ImageBuild) -> None:
    """Raises: `ConfigError` if the image of a Dockerfile starts a program beside the agent."""
    last = ""
    for item in build.read():
        last = {"FROM": "", "ENTRYPOINT": item.rest}.get(item.word, last)
    words = set(re.findall(r"[^\s\[\]\"',]+", last))
    if words - NAMES.idle_entries:
        raise ConfigError(f"its image starts `{last[:80]}`, and Treadle starts nothing beside the agent")
