"""Commands with an image as their root: what they change is the run's, through snapshots, forks and kills.

Each test starts a few sandboxes, and the first builds an image, so they take more CPU time than most.
"""

import asyncio
import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.command import Cli
from tests.sandbox.small_images import BASE, image_folder, image_maker, needs_images, write_root

from treadle import Agent, ScriptedModel, open_journal
from treadle.core import events as e
from treadle.core.errors import ConfigError, SandboxError
from treadle.core.types import Message, Role, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.sandbox.commands.bubblewrap import OUTER_ID, is_root
from treadle.sandbox.commands.home import PREFIX
from treadle.sandbox.commands.host import HostCommands, HostFolder
from treadle.sandbox.commands.images import (
    _find_user,
    build_image,
    find_builder,
    find_image_fault,
    list_unpacked,
    open_image,
    remove_unpacked,
)
from treadle.sandbox.commands.untrusted import remove_tree
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Limits, RunFiles
from treadle.tools.shell import Shell

pytestmark = needs_images
__all__ = ["image_folder", "image_maker"]

CHANGES = """rm /srv/one; rm -r /srv/old; mkdir -p /srv/old/new /app/empty; echo three > /srv/old/three
mv /bin/stat /bin/stat2; echo more >> /etc/hosts; chmod 600 /etc/hosts; ln -s /srv/old /app/link; chmod 700 /app"""
LOOK = "ls -lR /app /srv; cat /etc/hosts; ls -l /etc/hosts /bin/stat*; ls -ld /app"


@pytest.fixture(scope="module")
def image(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    context = tmp_path_factory.mktemp("context")
    write_root(context)
    users = "RUN echo 'root:x:0:0::/root:/bin/sh\\nann:x:1005:1006::/home/ann:' > /etc/passwd && ln -s /srv /away\n"
    users += "RUN ln -s loop /loop && ln -s ../. /up\n"
    users += "RUN mkdir -p /opt/dev /vol && echo x > /opt/dev/kept && echo x > /vol/x\nVOLUME /vol\n"
    (context / "Dockerfile").write_text(f'{BASE}{users}ENV WHO="the world" A=1\nWORKDIR /app\nUSER ann\n')
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("BUILDAH_ISOLATION")
        return build_image(context, 120)


async def run(root: str, box: MemorySandbox, *commands: str) -> list[str]:
    async with HostCommands(root=root).open() as folder:
        return [(await folder.run(command, box, Limits())).text for command in commands]


def open_to_all(folder: Path) -> Path:
    """Return a new folder in which everybody may write."""
    for parent in [folder, *folder.parents]:
        if parent.owner() == "root" and not parent.stat().st_mode & 1:
            parent.chmod(0o711)
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    return folder / "open"


def without_times(text: str) -> str:
    return re.sub(r" \d+ \w{3} +\d+ \d\d:\d\d", "", re.sub(r"total \d+", "", text))


async def test_the_settings_of_an_image(image: str) -> None:
    box = MemorySandbox()
    told, ids = await run(image, box, 'pwd; echo "$WHO $A $HOME"; ls /; echo $$', "id -u; id -g")
    assert told.splitlines()[:2] == ["/app", "the world 1 /home/ann"]
    assert {"app", "bin", "srv", "tmp"} <= set(told.split())
    assert "work" not in told.split()
    assert ids.split() == ["1005", "1006"]
    assert box.paths() == []
    assert open_image(image).image_id == image
    assert find_image_fault(image) is None


def test_the_unpacked_files(image: str) -> None:
    """All are there, nobody else can use them, and the builder keeps nothing of the unpacking."""
    folder = Path(open_image(image).folder)
    assert (folder / "opt" / "dev" / "kept").read_text() == (folder / "vol" / "x").read_text()
    status = folder.parent.stat()
    assert stat.S_IMODE(status.st_mode) == (0o750 if is_root() else 0o700)
    assert status.st_gid == (OUTER_ID if is_root() else os.getgid())
    assert not [*folder.parent.parent.glob("*.container")]
    builder = find_builder()
    assert builder is not None
    shown = [builder, "ps", "--all", "--filter", f"ancestor={image}", "--format", "{{.ID}}"]
    assert subprocess.run(shown, capture_output=True, text=True, check=True).stdout == ""


async def test_an_unpacking_that_was_killed(image: str, image_folder: Path, tmp_path: Path) -> None:
    """Its programs hold the lock until they end; then its container and its files are removed."""
    builder = find_builder()
    assert builder is not None
    part = image_folder / f"{image[7:]}.part"
    (part / "root").mkdir(parents=True)
    note = part.with_suffix(".container")
    create = [builder, "create", "--cidfile", str(note), image[7:], "/bin/true"]
    subprocess.run(create, check=True, capture_output=True)
    left = note.read_text()
    done = part.with_suffix("").rename(image_folder / "aside")
    with (image_folder / f"{image[7:]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock.fileno()])
    opened = asyncio.ensure_future(asyncio.to_thread(open_image, image))
    await asyncio.wait([opened], timeout=0.5)
    assert not opened.done()
    assert part.exists()
    held.communicate()
    assert (await opened).folder == str(part.with_suffix("") / "root")
    shown = subprocess.run([builder, "container", "inspect", left], capture_output=True, check=False)
    assert shown.returncode != 0
    remove_tree(done)


@pytest.mark.parametrize("content", ["", "{}"])
def test_an_image_that_is_damaged(
    image: str, content: str, image_folder: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TREADLE_IMAGE_FOLDER", str(image_folder / "damaged"))
    place = image_folder / "damaged" / image[7:]
    place.mkdir(parents=True, exist_ok=True)
    (place / "image.json").write_text(content)
    with pytest.raises(SandboxError, match=r"is damaged .*remove that folder"):
        open_image(image)


def test_the_user_of_an_image() -> None:
    passwd = "root:x:0:0::/root:/bin/sh\nann:x:1005:1006::/home/ann:\nbad:x:²:1::/:\n"
    for given, found in {
        "": ((0, 0), "/root"),
        "ann": ((1005, 1006), "/home/ann"),
        "ann:33": ((1005, 33), "/home/ann"),
        "1005:staff": ((1005, 1006), "/home/ann"),
        "7:8": ((7, 8), "/"),
        "7": ((7, 0), "/"),
    }.items():
        assert _find_user(given, passwd) == found
    for wrong in ("²", "bad", "9999999999", "-1", "nobody"):
        with pytest.raises(ConfigError, match="has no user"):
            _find_user(wrong, passwd)


async def test_changes_are_in_the_snapshot_and_come_back(image: str) -> None:
    box = MemorySandbox()
    _, before = await run(image, box, CHANGES, LOOK)
    assert box.paths() == ["bin/stat2", "etc/hosts", "srv/old/three"]
    delta, blobs = box.take_delta() or pytest.fail("nothing changed")
    resumed = MemorySandbox.restore(delta.changed, blobs.__getitem__, delta.states)
    (after,) = await run(image, resumed, LOOK)
    assert without_times(after) == without_times(before)
    assert "one" not in after.split()
    assert "-rw-------" in after
    assert resumed.take_delta() is None
    # The image is as it was.
    (fresh,) = await run(image, MemorySandbox(), "ls /srv /srv/old; ls /bin/stat")
    assert {"one", "two", "/bin/stat"} <= set(fresh.split())


async def test_what_was_removed_can_be_made_again(image: str) -> None:
    box = MemorySandbox()
    async with HostCommands(root=image).open() as folder:
        await folder.run("rm -r /srv/old /srv/one", box, Limits())
        await folder.run("mkdir /srv/old; echo new > /srv/one", box, Limits())
        assert (await folder.run("ls -R /srv; cat /srv/one", box, Limits())).text.split()[-1] == "new"
    assert box.read("srv/one") == b"new\n"
    assert json.loads(box.read_state("shell") or b"")["removed"] == ["srv/old/"]
    (told,) = await run(image, box, "ls /srv/old")
    assert told == ""


async def test_other_tools_change_the_same_files(image: str) -> None:
    box = MemorySandbox({"srv/one": b"changed\n", "srv/old/more": b""})
    async with HostCommands(root=image).open() as folder:
        assert (await folder.run("cat /srv/one; ls /srv/old", box, Limits())).text == "changed\nmore\ntwo\n"
        box.delete("srv/one")
        await folder.run("rm -r /srv/old", box, Limits())
        box.write("srv/old/again", b"x")
        assert (
            await folder.run("ls /srv /srv/old", box, Limits())
        ).text == "/srv:\nold\n\n/srv/old:\nagain\n"
    (told,) = await run(image, box, "ls /srv /srv/old")
    assert told == "/srv:\nold\n\n/srv/old:\nagain\n"


@pytest.mark.parametrize("place", ["folders", "removed", "links", "modes"])
async def test_a_state_cannot_reach_beyond_the_layer(image: str, place: str, tmp_path: Path) -> None:
    box = MemorySandbox()
    outside = f"../../../..{tmp_path}/escaped/x"
    values: Mapping[str, object] = {"links": {outside: "/"}, "modes": {outside: 0o777}}
    box.write_state("shell", json.dumps({place: values.get(place, [outside])}).encode())
    if place == "modes":
        (tmp_path / "escaped").mkdir()
        (tmp_path / "escaped" / "x").write_text("")
        (tmp_path / "escaped" / "x").chmod(0o600)
    with pytest.raises(SandboxError, match="not a path in a sandbox"):
        await run(image, box, "true")
    assert place == "modes" or not (tmp_path / "escaped").exists()


def says(*commands: str) -> list[Message | str]:
    calls = [ToolCall(f"c{n}", "shell", json.dumps({"command": text})) for n, text in enumerate(commands)]
    return [*[Message(Role.ASSISTANT, tool_calls=(call,)) for call in calls], "Done."]


async def test_a_fork_goes_on_from_its_own_layer(image: str) -> None:
    journal = MemoryJournal()
    model = ScriptedModel(says("rm /srv/one; echo 1 > /etc/n", "echo 2 > /etc/n; touch /srv/one"))
    first = await Agent(model, tools=[Shell(root=image)], journal=journal).run("go", files={})
    assert first.files["etc/n"] == b"2\n"
    begun = [event.seq for event in first.events if isinstance(event.body, e.InferenceStarted)]
    again = ScriptedModel(says("cat /etc/n; ls /srv"))
    forked = await Agent(again, tools=[Shell(root=image)], journal=journal).fork(first.run_id, begun[1] - 1)
    assert forked.results[-1].content == "1\nold\n"


def test_a_killed_run_goes_on_from_its_last_snapshot(image: str, tmp_path: Path) -> None:
    """The process dies in the middle of the second command."""
    script = says(
        "rm /srv/one; echo 1 > /etc/n", "ls /srv; rm -r /srv/old; echo 2 >> /etc/n; echo on; sleep 1"
    )
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_die(script, image, tmp_path / "runs.db"))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert PREFIX not in Path("/proc/mounts").read_text()
    asyncio.run(_go_on(image, tmp_path / "runs.db"))


async def _go_on(image: str, path: Path) -> None:
    agent = Agent(ScriptedModel(["Done."]), tools=[Shell(root=image)], journal=open_journal(path))
    resumed = await agent.resume("r")
    assert [result.content for result in resumed.results] == ["", "old\non\n"]
    assert resumed.files["etc/n"] == b"1\n2\n"
    assert isinstance(resumed.files, RunFiles)
    kept = json.loads(resumed.files.read_state("shell") or b"")
    assert kept["removed"] == ["srv/old", "srv/one"]


async def _die(script: list[Message | str], image: str, path: Path) -> None:
    agent = Agent(ScriptedModel(script), tools=[Shell(root=image)], journal=open_journal(path))
    async for item in agent.stream("go", files={}, run_id="r"):
        if isinstance(item.body, e.ToolProgress) and "on" in item.body.text:
            os.kill(os.getpid(), signal.SIGKILL)


def test_images_that_cannot_be_used(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_root(tmp_path)
    for docker, why in (
        (f"{BASE}RUN echo 'a clear reason' && exit 3\n", "built: `RUN echo .*` fails: a clear reason"),
        ("FROM scratch\nCOPPY a b\n", r'built: `COPPY a b` fails: Unknown instruction: "COPPY"$'),
        ("FROM scratch\nCOPY root/bin/ls /ls\n", "cannot be used, which needs a /bin/sh: .*/bin/sh"),
        (f"{BASE}USER nobody-here\n", "has no user 'nobody-here'"),
    ):
        (tmp_path / "Dockerfile").write_text(docker)
        with pytest.raises(ConfigError, match=why):
            open_image(build_image(tmp_path, 120))
    assert not [*image_folder.glob("*.part")]
    for name, why in (
        ("--log-level=debug", "is not the name of an image"),
        (f"sha256:{'1' * 64}", "is not on this machine"),
        ("localhost:1/nothing", "there is no image 'localhost:1/nothing': "),
    ):
        with pytest.raises(ConfigError, match=why):
            open_image(name)
    monkeypatch.setenv("TREADLE_IMAGE_BUILDER", "none")
    unknown = f"sha256:{'0' * 64}"
    for fault in (find_image_fault(needs_builder=True), find_image_fault(unknown)):
        assert "TREADLE_IMAGE_BUILDER is 'none'" in (fault or "")
    with pytest.raises(ConfigError, match="'shell' cannot be used here: TREADLE_IMAGE_BUILDER is 'none'"):
        Shell(root=unknown).tools()
    monkeypatch.setenv("TREADLE_IMAGE_BUILDER", "no-such-program")
    with pytest.raises(ConfigError, match="TREADLE_IMAGE_BUILDER is 'no-such-program'"):
        open_image(unknown)


def test_a_build_that_takes_too_long_is_stopped(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends at once when it is told to, and what it has started does not."""
    mark = f"{600 + os.getpid() / 1e9:.9f}"
    builder = tmp_path / "slow"
    builder.write_text(f'#!/bin/sh\n[ "$1" = info ] && exit 0\necho begun\nsleep {mark}\n')
    builder.chmod(0o755)
    monkeypatch.setenv("TREADLE_IMAGE_BUILDER", str(builder))
    with pytest.raises(ConfigError, match=r"cannot be built: begun \| .*stopped after 0\.5 seconds"):
        build_image(tmp_path, 0.5)
    assert not find_sleepers(mark)


def test_a_build_during_which_another_image_was_removed_is_tried_again(
    image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder, said = tmp_path / "builder", "Error: checking if cached image exists: layer not known"
    builder.write_text(
        f'#!/bin/sh\n[ "$1" = info ] && exit 0\nif mkdir {tmp_path}/tried; then echo {said}; exit 125; fi\n'
        'printf sha256:ab > "$3"\n'
    )
    builder.chmod(0o755)
    monkeypatch.setenv("TREADLE_IMAGE_BUILDER", str(builder))
    monkeypatch.setenv("TREADLE_IMAGE_FOLDER", str(image_folder / "again"))
    assert build_image(tmp_path, 30) == "sha256:ab"


def find_sleepers(mark: str) -> list[str]:
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if line == f"sleep {mark}"]


def test_an_image_whose_unpacking_was_killed_is_unpacked_again(
    image: str, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder / "other"
    left = folder / f"{image.removeprefix('sha256:')}.part" / "root" / "left"
    left.mkdir(parents=True)
    monkeypatch.setenv("TREADLE_IMAGE_FOLDER", str(folder))
    made = Path(open_image(image).folder)
    assert (made / "srv" / "one").read_text() == "one\n"
    assert not (made / "left").exists()
    assert not left.exists()


@pytest.mark.sets(0)
def test_images_that_nothing_uses_are_removed(
    image: str, image_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = image_folder / "listed"
    folder.mkdir()
    monkeypatch.setenv("TREADLE_IMAGE_FOLDER", str(folder))
    made = Path(open_image(image).folder)
    (listed,) = list_unpacked()
    assert (listed.image_id, listed.is_in_use) == (image, False)
    assert listed.size_bytes > 1_000_000
    cli, seen = Cli(tmp_path), list[tuple[bool, bool]]()
    cli.env["TREADLE_IMAGE_FOLDER"] = str(folder)  # and never the images of this machine

    def remove(_: str) -> None:
        (now,) = list_unpacked()
        seen.append((now.is_in_use, remove_unpacked(now)))

    async def run() -> None:
        box = MemorySandbox()
        async with HostCommands(root=image).open() as opened:
            await opened.run("echo begun; sleep 0.5", box, Limits(), remove)

    asyncio.run(run())
    assert (True, False) in seen
    assert "  used " in cli("images", "--remove").out
    assert made.exists()
    assert not remove_unpacked(replace(listed, used_at=0.0)), "it was used since"
    gone = cli("images", "--remove", "--unused-days", "0", "--json")
    assert [item["is_removed"] for item in gone.lines] == [True]
    assert not [*folder.glob(f"{made.parent.name}*/root")]
    assert Path(open_image(image).folder, "srv/one").read_text() == "one\n"


def test_folders_of_images(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_IMAGE_FOLDER", str(tmp_path / "file" / "x"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="set TREADLE_IMAGE_FOLDER"):
        open_image(image)
    assert "set TREADLE_IMAGE_FOLDER" in (find_image_fault() or "")
    with pytest.raises(ConfigError, match="folders of the run's files cannot have other paths"):
        Shell(root=image, folders={"/data": "data"})


@pytest.mark.parametrize("network", [False, True])
async def test_nothing_is_mounted_or_made_through_a_link(image: str, network: bool, tmp_path: Path) -> None:
    """Bubblewrap follows the links that it finds on the way to a mount, also out of the image."""
    target = open_to_all(tmp_path)
    links = {
        "data": f"/oldroot{target}",
        "dev": f"/oldroot{target}/d",
        "etc/resolv.conf": f"/oldroot{target}/f",
    }
    box = MemorySandbox({"proc": b"in the way"})
    box.write_state("shell", json.dumps({"links": links}).encode())
    commands = HostCommands(root=image, has_network=network, binds={"/usr/share": "/data/in/share"})
    async with commands.open() as folder:
        told = await folder.run("ls /data/in/share > /dev/null && ls -d /proc/1 /dev/null", box, Limits())
        assert told.text.split() == ["/dev/null", "/proc/1"]
        move = f"mv /data/in /data/out && ln -s /oldroot{target} /data/in"
        assert (await folder.run(move, box, Limits())).exit_code == 0
        assert (await folder.run("ls /data/in/share > /dev/null", box, Limits())).exit_code == 0
    assert not [*target.iterdir()]


async def test_nothing_is_mounted_on_what_a_link_of_the_image_leads_to(image: str) -> None:
    async with HostCommands(root=image, binds={"/usr/share": "/away/share"}).open() as folder:
        with pytest.raises(SandboxError, match="nothing can be mounted below /away, which is a link"):
            await folder.run("true", MemorySandbox(), Limits())


@pytest.mark.parametrize("place", ["removed", "links", "modes"])
@pytest.mark.parametrize("name", ["..", "a/..", "", "a/"])
async def test_a_state_cannot_name_the_folder_above(image: str, place: str, name: str) -> None:
    if (place, name) == ("removed", "a/"):
        return  # all in a folder
    values: Mapping[str, object] = {"links": {name: "/"}, "modes": {name: 0o777}}
    box = MemorySandbox({"a/file": b""})
    box.write_state("shell", json.dumps({place: values.get(place, [name])}).encode())
    with pytest.raises(SandboxError, match="is not a path in a sandbox"):
        await run(image, box, "true")


async def test_a_command_can_break_its_own_system(image: str) -> None:
    """That is what the run did, and no fault of the sandbox."""
    box = MemorySandbox()
    async with HostCommands(root=image).open() as folder:
        await folder.run("rm -r /app", box, Limits())
        told = await folder.run("pwd; rm /bin/sh", box, Limits())
        assert told.text == "[there is no folder /app; this command begins in /]\n/\n"
        for more in ["true"] * 10:
            told = await folder.run(more, box, Limits())
            assert told.exit_code != 0
            assert "bwrap: execvp /bin/sh: No such file" in told.text


async def test_a_file_that_another_tool_writes_is_where_a_link_of_the_image_leads(image: str) -> None:
    box = MemorySandbox({"away/old/new": b"1", "loop/file": b"2", "up/up/srv/x": b"3"})
    async with HostCommands(root=image).open() as folder:
        told = await folder.run("cat /away/old/new /srv/old/new /srv/old/two /srv/x", box, Limits())
        assert told.text == "11two\n3"
        assert box.paths() == ["loop/file", "srv/old/new", "srv/x"]
        await folder.run("rm /away; mkdir /away", box, Limits())
        box.write("away/own", b"4")
        assert (await folder.run("ls /away", box, Limits())).text == "own\n"
    assert (await run(image, box, "ls /away; ls -d /srv/own"))[0].startswith("own\n")
    assert box.paths() == ["away/own", "loop/file", "srv/old/new", "srv/x"]


async def test_a_variable_of_an_image_that_disturbs_its_programs(image: str) -> None:
    commands = HostCommands(root=image)
    opened = open_image(image)
    folder = HostFolder(commands, replace(opened, variables={**opened.variables, "LD_PRELOAD": "/none.so"}))
    told = await folder.run("echo on", MemorySandbox(), Limits())
    folder.close()
    assert told.exit_code == 0
    assert "on\n" in told.text
    assert "/none.so" in told.text


def import_image(links: Mapping[str, str], devices: Sequence[str], place: Path) -> str:
    """Return the id of an image with `PROGRAMS`, links and devices, which no Dockerfile is needed for."""
    with tarfile.open(place / "image.tar", "w") as archive:
        write_root(place)
        archive.add(place / "root", ".")
        for name in (*links, *devices):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = (
                (tarfile.SYMTYPE, links[name]) if name in links else (tarfile.CHRTYPE, "")
            )
            entry.devmajor, entry.devminor = 1, 3
            archive.addfile(entry)
    builder = find_builder()
    assert builder is not None
    made = subprocess.run(
        [builder, "import", str(place / "image.tar")], capture_output=True, text=True, check=True
    )
    return f"sha256:{made.stdout.split()[-1].removeprefix('sha256:')}"


@pytest.mark.sets(0)
async def test_images_with_links_and_devices(image_folder: Path, tmp_path: Path) -> None:
    target = open_to_all(tmp_path)
    links = {
        "etc/resolv.conf": f"/oldroot{target}/x",
        "etc/passwd": f"/oldroot{target}/x",
        "srv": "/etc",
        "opt/über": "x",
    }
    made = [import_image(links, ["opt/null", "null"], tmp_path)]
    commands = HostCommands(root=made[0], has_network=True)
    async with commands.open() as folder:
        told = await folder.run("cat /etc/resolv.conf > /dev/null; ls /opt /srv", MemorySandbox(), Limits())
        assert told.text == "/opt:\nüber\n\n/srv:\nhosts\npasswd\nresolv.conf\n"
    for name in ("dev", "proc"):
        made.append(import_image({name: f"/oldroot{target}/x"}, [], tmp_path))
        with pytest.raises(ConfigError, match=f"/{name} is a link"):
            open_image(made[-1])
    assert not [*target.iterdir()]
    subprocess.run([find_builder() or "", "rmi", "--force", *made], capture_output=True, check=True)
