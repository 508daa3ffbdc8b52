"""Images that need no network: a shell and a few programs of this machine, and what a Dockerfile adds."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.sandbox.here import needs_sandbox

from treadle.core.errors import SandboxError
from treadle.sandbox.commands.images import _prove_layers, find_builder

PROGRAMS = ("sh", "cat", "ls", "mkdir", "rm", "cp", "mv", "chmod", "ln", "stat", "id", "base64", "dirname")
PROGRAMS += ("touch", "sleep", "grep")
BASE = "FROM scratch\nCOPY root/ /\nRUN mkdir -p /srv/old && echo one > /srv/one && echo two > /srv/old/two\n"


def _find_fault() -> str | None:
    try:
        _prove_layers()
    except (SandboxError, OSError) as error:
        return str(error)
    return None if find_builder() else "neither Docker nor Podman works here"


@pytest.fixture(scope="session")
def image_maker() -> None:
    """Skip the test if no image can be made here. This is not found out before a test asks, because it starts
    programs."""
    if (fault := _find_fault()) is not None:
        pytest.skip(f"no image can be made here: {fault}")


needs_images = [needs_sandbox, pytest.mark.usefixtures("image_maker")]


@cache
def _read_root() -> dict[str, bytes]:
    # Equal images have equal ids, and another process would remove this one's at its end.
    files = {"maker": os.urandom(8).hex().encode()}
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin")
        assert found is not None, name
        files[f"bin/{name}"] = Path(found).read_bytes()
        needed = subprocess.run(["ldd", found], capture_output=True, text=True, check=False).stdout
        files.update({path[1:]: Path(path).read_bytes() for path in re.findall(r"/\S+", needed)})
    return files


def write_root(place: Path) -> None:
    """Write the folder `root` with `PROGRAMS` and the libraries that they need, for `BASE`."""
    for name, content in _read_root().items():
        path = place / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)


@pytest.fixture(scope="session")
def image_folder(image_maker: None) -> Iterator[Path]:
    """The folder for unpacked images, which the user of sandboxes can reach. The images are removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="treadle-images-", dir="/tmp"))
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TREADLE_IMAGE_FOLDER", str(folder))
        # Where Podman cannot start containers, this saves a first try of each build.
        patched.setenv("BUILDAH_ISOLATION", "chroot")
        yield folder
    builder = find_builder()
    made = [path.read_text() for path in (folder / "built").glob("*")]
    if builder is not None and made:
        subprocess.run([builder, "rmi", "--force", *made], capture_output=True, check=False)
    subprocess.run(["chmod", "-R", "u+rwX", folder], check=True)
    shutil.rmtree(folder)
