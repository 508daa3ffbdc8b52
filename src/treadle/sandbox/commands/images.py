"""Images of containers as the root of commands.

Docker or Podman builds, pulls and exports an image, and starts no container for a run. The content is unpacked
once, into a cache folder under the image's id, and belongs to the user that commands run as.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, SandboxError
from treadle.sandbox.commands.bubblewrap import (
    FOLDERS,
    LAYER,
    OUTER_ID,
    ImageRoot,
    Isolation,
    as_other_user,
    is_root,
    join_layers,
)
from treadle.sandbox.commands.execution import SandboxCommand
from treadle.sandbox.commands.home import is_open_to_all, make_root
from treadle.sandbox.commands.process_family import descendants, kill_all
from treadle.sandbox.commands.untrusted import remove_tree
from treadle.sandbox.protocol import Limits

BUILDER_VARIABLE = "TREADLE_IMAGE_BUILDER"
FOLDER_VARIABLE = "TREADLE_IMAGE_FOLDER"
IMAGE_ID = re.compile("sha256:[0-9a-f]{64}")
_NAME = re.compile(r"\w[\w./:@+-]*", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CANNOT_START = re.compile("error running container|OCI runtime|create message from subprocess")
"""What Podman prints where it cannot start containers. It can then build with no more than `chroot`."""
_GRACE_SECONDS = 3
"""How long a program that is told to end may take."""
_NO_DEVICE = re.compile("Cannot mknod: Operation not permitted|Exiting with failure status due to previous")
_STEP = re.compile(r"(?:STEP \d+(?:/\d+)?:| ?> \[.*?\d+/\d+\]) (.+?):?")
"""How Podman and Docker name the line of the Dockerfile that they work on."""
_NOISE = re.compile(r'-{2,}|time="|(sub)?process exited with|\d+ \||$')
"""How lines of a build begin that do not say why it fails."""
_WRAPPING = re.compile(r'^Error: building at STEP ".*?": (?:Build error: )?| &imagebuilder\.Step\{.*')
"""What Podman puts around the reason."""
_LINES = 8
"""How many of the last lines of a program's output an error shows."""
_PATIENCE_SECONDS = 10
"""How long a program may clean up whose own programs were ended."""


_LOG = logging.getLogger("treadle")


class NoBuilderError(ConfigError):
    """Raised if an image is not here yet, and there is no program to build or pull it."""


class ImageSettings(Struct):
    """The settings of an image that commands need."""

    workdir: str = "/"
    user: str = ""
    variables: list[str] = []
    """The environment, each as `NAME=value`."""


def find_builder() -> str | None:
    """Return the program that builds and exports images: `docker` or `podman`, or the one that the variable
    `TREADLE_IMAGE_BUILDER` names; `None` if there is none that works, or the variable is `none`."""
    return _find_builder(os.environ.get(BUILDER_VARIABLE))


@cache
def _find_builder(wanted: str | None) -> str | None:
    if wanted == "none":
        return None
    for name in [wanted] if wanted else ["docker", "podman"]:
        if shutil.which(name) is not None and _call([name, "info"], 30).returncode == 0:
            return name
    if wanted:
        raise ConfigError(
            f"{BUILDER_VARIABLE} is {wanted!r}, which does not work here: `{wanted} info` fails"
        )
    return None


def build_image(context: Path, seconds: float, dockerfile: Path | None = None) -> str:
    """Build an image from the files of a folder, unless this was done before, and return the image's id. Without
    `dockerfile`, the Dockerfile is in the folder.

    Raises: `ConfigError` with the last lines of the output if it cannot be built within the time.
    """
    dockerfile = context / "Dockerfile" if dockerfile is None else dockerfile
    known = _folder() / "built" / digest_build(context, dockerfile)
    if (image_id := _read_built(known)) is not None:
        return image_id
    with _locked(f"built-{known.name}") as (folder, lock):
        if (image_id := _read_built(known)) is not None:
            return image_id
        note = folder / f"{known.name}.id"
        command = [_need_builder(), "build", "--iidfile", str(note), "--file", str(dockerfile.resolve())]
        command.append(str(context.resolve()))
        _LOG.warning("an image is built from %s, which can take minutes", context)
        made = _call(command, seconds, lock)
        if made.returncode != 0 and _CANNOT_START.search(made.stdout) and "podman" in command[0]:
            command.insert(2, "--isolation=chroot")
            made = _call(command, seconds, lock)
        if made.returncode != 0 and "layer not known" in made.stdout:
            # Another program removed an image while Podman looked through all of them.
            made = _call(command, seconds, lock)
        if made.returncode != 0:
            raise ConfigError(f"its image cannot be built: {_explain(made)}")
        image_id = note.read_text().strip()
        note.unlink()
        known.parent.mkdir(exist_ok=True)
        known.write_text(image_id)
    return image_id


def _read_built(known: Path) -> str | None:
    """Return the id in the note of a build whose image is unpacked."""
    with suppress(OSError):
        image_id = known.read_text()
        return None if _unpacked(image_id) is None else image_id
    return None


def open_image(name: str) -> ImageRoot:
    """Return the content of the image with a name or id. It is pulled and unpacked if it is not here.

    Raises: `ConfigError` if there is no such image, or it cannot be used; `SandboxError` if it cannot be unpacked.
    """
    if (found := _unpacked(name)) is not None:
        return _note_use(found)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not the name of an image")
    builder = _need_builder()
    shown = _call([builder, "image", "inspect", name], 60)
    if shown.returncode != 0:
        if IMAGE_ID.fullmatch(name):
            raise ConfigError(
                f"the image {name} is not on this machine; load the task that it was built for again"
            )
        _LOG.warning("the image %s is pulled, which can take minutes", name)
        pulled = _call([builder, "pull", name], 3600)
        if pulled.returncode != 0:
            raise ConfigError(f"there is no image {name!r}: {_tail(pulled)}")
        shown = _call([builder, "image", "inspect", name], 60)
    try:
        told: dict[str, Any] = json.loads(shown.stdout)[0]
        image_id, config = f"sha256:{told['Id'].removeprefix('sha256:')}", told.get("Config") or {}
        settings = ImageSettings(
            config.get("WorkingDir") or "/", config.get("User") or "", config.get("Env") or []
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"the image {name!r} cannot be inspected: {_tail(shown)}") from error
    if (found := _unpacked(image_id)) is None:
        with _locked(_hex(image_id)) as (folder, lock):
            found = _unpacked(image_id) or _unpack(builder, image_id, settings, folder, lock)
    return _note_use(found)


def find_image_fault(name: str | None = None, *, needs_builder: bool = False) -> str | None:
    """Return why the image with a name or id, or any image, cannot be used here, as far as can be said without
    opening it, or pulling or building it. If it `needs_builder`, a program must be there that could do so, as for
    an image that is not unpacked."""
    for program in ("unshare", "mount", "tar"):
        if shutil.which(program) is None:
            return f"an image needs the program `{program}`; install it"
    try:
        _prove_layers()
        folder = _folder()
        if name is None or _unpacked(name) is None:
            if not os.access(folder, os.W_OK):
                return f"images cannot be unpacked in {str(folder)!r}: it is read-only; set {FOLDER_VARIABLE}"
            if needs_builder or name is not None:
                _need_builder()
    except (ConfigError, SandboxError) as error:
        return str(error)
    return None


class UnpackedImage(Struct, frozen=True):
    """The content of an image in the folder of images."""

    image_id: str
    size_bytes: int
    """What it takes on the disk."""
    used_at: float
    """When it was last asked for, in seconds since the epoch."""
    is_in_use: bool
    """True if commands run in it now, as far as this user can see."""


def list_unpacked() -> list[UnpackedImage]:
    """Return the unpacked images, the one that was used last first. Raises: `ConfigError`."""
    mounted = "".join(map(_read_mounts, Path("/proc").glob("[0-9]*/mountinfo")))
    found = [
        UnpackedImage(f"sha256:{place.name}", _measure(place), _used_at(place), place.name in mounted)
        for place in _folder().iterdir()
        if IMAGE_ID.fullmatch(f"sha256:{place.name}")
    ]
    return sorted(found, key=lambda image: -image.used_at)


def remove_unpacked(image: UnpackedImage) -> bool:
    """Remove the content of an image, and return whether that was possible: commands may have begun to run in it
    since it was listed. It is unpacked again when it is needed. Raises: `SandboxError`."""
    with _locked(_hex(image.image_id)) as (folder, _):
        place = folder / _hex(image.image_id)
        mounted = "".join(map(_read_mounts, Path("/proc").glob("[0-9]*/mountinfo")))
        if place.name in mounted or _used_at(place) > image.used_at:
            return False
        part = place.with_suffix(".part")
        if part.exists():
            remove_tree(part)
        place.rename(part)  # what is left of it, if this process is killed, is removed by the next unpacking
        remove_tree(part)
        for note in folder.glob("built/*"):
            if note.read_text() == image.image_id:
                note.unlink()
    return True


def _read_mounts(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def _used_at(place: Path) -> float:
    with suppress(OSError):
        return (place / "image.json").stat().st_mtime
    return 0.0


def _measure(place: Path) -> int:
    """Return what a folder takes on the disk, in bytes. A file with several names counts once."""
    found = {(state.st_dev, state.st_ino): state.st_blocks * 512 for state in map(os.lstat, _walk(place))}
    return sum(found.values())


def _walk(place: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(place):
        yield from [os.path.join(folder, name) for name in (*folders, *files)]


def _note_use(image: ImageRoot) -> ImageRoot:
    with suppress(OSError):  # the folder may be read-only
        os.utime(Path(image.folder).parent / "image.json")
    return image


@cache
def _prove_layers() -> None:
    """Join two layers. A success is remembered. Raises: `SandboxError`."""
    root = make_root((*FOLDERS, *LAYER), OUTER_ID if is_root() else None)
    try:
        done = _call([*as_other_user(), *join_layers(str(root / "etc"), root, {}), "true"], 30)
    finally:
        remove_tree(root)
    if done.returncode != 0:
        raise SandboxError(
            f"commands cannot have an image as their root here: {_tail(done)}; it needs Linux 5.11 or later, user "
            "namespaces, and a TMPDIR that is not itself on an overlay file system, as that of a container often is"
        )


def _unpack(builder: str, image_id: str, settings: ImageSettings, folder: Path, lock: int) -> ImageRoot:
    """Unpack an image. Raises: `ConfigError`, `SandboxError`, `OSError`."""
    part = folder / f"{_hex(image_id)}.part"
    if part.exists():  # a process was killed while it unpacked the image
        remove_tree(part)
    (part / "root").mkdir(parents=True)
    try:
        # An image may have programs that give everybody the rights of their owner, and files that all may write.
        part.chmod(0o750 if is_root() else 0o700)
        if is_root():
            os.chown(part, -1, OUTER_ID)
            os.chown(part / "root", OUTER_ID, OUTER_ID)
        _export(builder, image_id, part / "root", part.with_suffix(".container"), lock)
        image = ImageRoot(image_id=image_id, folder=str(part / "root"), is_layered=False)
        made = _prepare(image, settings)
        (part / "image.json").write_bytes(msgspec.json.encode(made))
        part.rename(part.with_suffix(""))
    except BaseException:
        remove_tree(part)
        raise
    return replace(made, folder=str(part.with_suffix("") / "root"), is_layered=True)


def _export(builder: str, image_id: str, target: Path, note: Path, lock: int) -> None:
    """Write the files of an image to a folder, as the user of commands. The id of the container that is made for it
    stands in the file `note`. If this process is killed, the programs go on for a while; they hold the lock until
    they end. Raises: `SandboxError`, `OSError`."""
    _remove_container(builder, note)
    create = [builder, "create", "--cidfile", str(note), _hex(image_id), "/bin/true"]
    made = _call(create, 600, lock)
    if made.returncode != 0:
        raise SandboxError(f"the image {image_id} cannot be exported: {_tail(made)}")
    # The user of commands owns all files, so it must be allowed to read and change them.
    options = '--anchored --exclude "dev/*" --exclude "./dev/*" --warning no-timestamp'
    script = f"tar -x -p -f - {options}; code=$?; chmod -R u+rwX . && exit $code"
    argv = [*as_other_user(), "/bin/sh", "-c", script]
    try:
        with subprocess.Popen(
            [builder, "export", note.read_text()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[lock],
        ) as exported:
            done = subprocess.run(
                argv,
                cwd=target,
                stdin=exported.stdout,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                pass_fds=[lock],
                env={**os.environ, "LC_ALL": "C"},
            )
            assert exported.stdout is not None
            exported.stdout.close()
            _, trouble = exported.communicate()
    finally:
        _remove_container(builder, note)
    # The user of commands cannot make devices, nor use them in a sandbox, so they are left out.
    said = "\n".join(line for line in done.stderr.splitlines() if not _NO_DEVICE.search(line))
    is_unpacked = done.returncode == 0 or (done.returncode == 2 and not said)
    if not is_unpacked or exported.returncode != 0:
        said = (said or trouble.decode(errors="replace")).strip()
        raise SandboxError(f"the image {image_id} cannot be unpacked: {said[-500:]}")


def _remove_container(builder: str, note: Path) -> None:
    """Remove the container with the id in a file, and its volumes, and then the file, if there is one."""
    if note.exists():
        _call([builder, "rm", "--volumes", note.read_text()], 60)
        note.unlink()


def _prepare(image: ImageRoot, settings: ImageSettings) -> ImageRoot:
    """Make what every container has, and return the image with its settings. Raises: `ConfigError`."""
    for name in ("proc", "dev"):
        # Bubblewrap mounts there, and follows links also out of the image.
        if Path(image.folder, name).is_symlink():
            raise ConfigError(f"its image cannot be used: /{name} is a link")
    workdir = shlex.quote(settings.workdir)
    script = (
        f"[ -d {workdir} ] || mkdir -p {workdir}; [ -d /tmp ] || mkdir -m 1777 /tmp; [ -d /etc ] || mkdir /etc; "
        '[ -s /etc/hosts ] || echo "127.0.0.1 localhost sandbox" > /etc/hosts; '
        '[ ! -f /etc/passwd ] || while read -r line; do echo "$line"; done < /etc/passwd'
    )
    root = make_root(FOLDERS, OUTER_ID if is_root() else None)
    try:
        inside = Isolation(image=replace(image, variables={"PATH": _PATH}))
        done = SandboxCommand(script, root, Limits(), inside).run()
    except SandboxError as error:
        raise ConfigError(f"its image cannot be used, which needs a /bin/sh: {error}") from error
    finally:
        remove_tree(root)
    if done.exit_code != 0:
        raise ConfigError(f"its image cannot be used: {done.text.strip()[-500:] or done.reason}")
    user, home = _find_user(settings.user, done.text)
    given = dict(pair.partition("=")[::2] for pair in settings.variables)
    return replace(image, begin=settings.workdir, user=user, variables={"PATH": _PATH, "HOME": home, **given})


def _find_user(user: str, passwd: str) -> tuple[tuple[int, int], str]:
    """Return the ids and home of a user, by name or number. A group must be a number. Raises: `ConfigError`."""
    name, _, group = user.partition(":")
    name, group = name or "0", group if _NUMBER.fullmatch(group) else ""
    for line in passwd.splitlines():
        parts = line.split(":")
        if len(parts) >= 6 and name in (parts[0], parts[2]) and all(map(_NUMBER.fullmatch, parts[2:4])):
            return (int(parts[2]), int(group or parts[3])), parts[5]
    if _NUMBER.fullmatch(name):
        return (int(name), int(group or 0)), "/root" if name == "0" else "/"
    raise ConfigError(f"its image has no user {name!r} in /etc/passwd")


def _unpacked(name: str) -> ImageRoot | None:
    """Return the content of the image with an id, if it is unpacked."""
    if not IMAGE_ID.fullmatch(name):
        return None
    place = _folder() / _hex(name)
    try:
        found = msgspec.json.decode((place / "image.json").read_bytes(), type=ImageRoot)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise SandboxError(f"the image in {str(place)!r} is damaged ({error}); remove that folder") from error
    return replace(found, folder=str(place / "root"), is_layered=True)


def _hex(image_id: str) -> str:
    return image_id.removeprefix("sha256:")


def _folder() -> Path:
    """Return the folder of unpacked images. Raises: `ConfigError` if commands cannot reach it."""
    cache_folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    usual = Path("/var/cache" if is_root() else cache_folder, "treadle", "images")
    folder = Path(os.environ.get(FOLDER_VARIABLE) or usual).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_reached = not is_root() or is_open_to_all(folder)
    except OSError as error:
        raise ConfigError(
            f"images cannot be unpacked in {str(folder)!r}: {error}; set {FOLDER_VARIABLE}"
        ) from error
    if not is_reached:
        raise ConfigError(
            f"only root can reach {str(folder)!r}, and commands run as another user; set {FOLDER_VARIABLE} to a "
            "folder that everybody may enter"
        )
    return folder


@contextmanager
def _locked(name: str) -> Iterator[tuple[Path, int]]:
    """Hold a lock of the folder of images, which other processes respect too. Yield the folder, and the lock's
    descriptor. Raises: `SandboxError` for any `OSError` meanwhile."""
    folder = _folder()
    try:
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder, lock.fileno()
    except SandboxError:
        raise
    except OSError as error:
        raise SandboxError(f"an image cannot be made or unpacked in {str(folder)!r}: {error}") from error


def find_ignored(dockerfile: Path) -> Path:
    """Return where a Dockerfile may have a `.dockerignore` of its own, in place of that of the folder."""
    return dockerfile.with_name(f"{dockerfile.name}.dockerignore")


def digest_build(context: Path, dockerfile: Path) -> str:
    """Return a hash of a Dockerfile and of all files of a folder, with their names and modes."""
    # One of several Dockerfiles in the folder is hashed twice, because it says which one is meant.
    beside = [] if dockerfile == context / "Dockerfile" else [dockerfile, find_ignored(dockerfile)]
    paths = [*sorted(context.rglob("*")), *[path for path in beside if path.exists()]]
    found = [(path, path.lstat()) for path in paths]
    return _hash_files(
        tuple((path, status.st_mode, status.st_size, status.st_mtime_ns) for path, status in found), context
    )


@cache
def _hash_files(found: tuple[tuple[Path, int, int, int], ...], context: Path) -> str:
    total = hashlib.sha256()
    for path, mode, _, _ in found:
        total.update(f"{os.path.relpath(path, context)}\0{mode:o}\0".encode(errors="surrogateescape"))
        content = os.readlink(path).encode() if stat.S_ISLNK(mode) else b""
        total.update(hashlib.sha256(path.read_bytes() if stat.S_ISREG(mode) else content).digest())
    return total.hexdigest()


def _need_builder() -> str:
    builder = find_builder()
    if builder is None:
        if os.environ.get(BUILDER_VARIABLE):
            raise NoBuilderError(
                f"{BUILDER_VARIABLE} is 'none', and a program must provide the image; remove that variable, or "
                "set it to 'docker' or 'podman'"
            )
        raise NoBuilderError(
            "neither Docker nor Podman works here, and one must provide the image; install one"
        )
    return builder


def _call(argv: Sequence[str], seconds: float, lock: int | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a program, and return its output with what it said about errors. It fails if its time is over, and is
    ended with all that it has started. It holds a `lock` too, in case this process is killed."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[] if lock is None else [lock],
    ) as process:
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            out = f"{_stop(process)}\nstopped after {seconds:g} seconds"
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode or ("stopped after" in out[-40:]), out, "")


def _stop(process: "subprocess.Popen[str]") -> str:
    """End a program with all that it has started. Return its output."""
    # A build whose command ends cleans up, which it does not do if it is ended itself.
    kill_all(started := descendants(process.pid)[1:])
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_SECONDS if started else 0)
    process.terminate()
    try:
        return process.communicate(timeout=_GRACE_SECONDS)[0]
    except subprocess.TimeoutExpired:
        kill_all(descendants(process.pid))
        return process.communicate()[0]


def _explain(made: "subprocess.CompletedProcess[str]") -> str:
    """Return the line of the Dockerfile at which a build failed, with what was printed about it."""
    lines = [line.strip() for line in made.stdout.splitlines()]
    steps = [(place, found[1]) for place, line in enumerate(lines) if (found := _STEP.fullmatch(line))]
    if not steps:
        return _tail(made)
    place, step = steps[-1]
    said = [_WRAPPING.sub("", line) for line in lines[place + 1 :] if not _NOISE.match(line)]
    return f"`{step[:200]}` fails: {' | '.join(said[-_LINES:])[-1000:]}"


def _tail(done: "subprocess.CompletedProcess[str]") -> str:
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return " | ".join(lines[-_LINES:])[-1500:]
