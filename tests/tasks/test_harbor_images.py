"""Harbor folders that need an image: built, run in it, and graded in it.

Each folder has an image of its own, whose build takes more CPU time than most tests.
"""

import shutil
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from tests.sandbox.small_images import BASE, image_folder, image_maker, needs_images, write_root
from tests.tasks.test_foreign import run, write

from treadle.agent.agent import Agent
from treadle.cli.jobs.job_command import find_program_workers
from treadle.core.errors import ConfigError
from treadle.jobs.sections import AttemptSection
from treadle.journal.memory import MemoryJournal
from treadle.runs.task import find_tasks, load_task
from treadle.testbed import oracle_for
from treadle.tools.resolve import resolve_tools
from treadle.trajectory.run_verification import verify_run

pytestmark = needs_images
__all__ = ["image_folder", "image_maker"]


def write_task(place: Path, docker: str, solution: str, test: str, settings: str = "") -> None:
    """Write a task over `BASE`. `test` is a command that fails if the outcome is wrong."""
    write_root(place / "environment")
    write(
        place,
        task_dot_toml=f'version = "1.0"\n{settings}',
        instruction_dot_md="Do it.\n",
        environment__Dockerfile=BASE + docker,
        solution__solve_dot_sh=f"#!/bin/sh\n{solution}\n",
        tests__test_dot_sh=f"#!/bin/sh\nif ({test}); then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    )


@pytest.mark.sets(0)
def test_a_pattern_builds_only_the_images_of_its_tasks(image_folder: Path, tmp_path: Path) -> None:
    for name in ("good", "other"):
        write_task(tmp_path / name, f"RUN mkdir /opt && echo {name} > /opt/name\nWORKDIR /app\n", "", "true")
    known = {*image_folder.glob("built/*")}
    pattern = f"harbor:{tmp_path}:g*"
    assert find_tasks([pattern]) == [f"harbor:{tmp_path}:good"]
    assert find_program_workers(AttemptSection(tasks=[pattern])) is None
    assert len({*image_folder.glob("built/*")} - known) == 1
    with pytest.raises(ConfigError, match=r"has no task that fits 'z\*'; ids are such as 'good'"):
        find_tasks([f"harbor:{tmp_path}:z*"])


@pytest.fixture(scope="module")
def tasks(image_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("tasks")
    write_task(
        place / "run",
        "RUN mkdir -p /opt/tool && echo 'echo made' > /opt/tool/go && chmod +x /opt/tool/go\nWORKDIR /app\n",
        "/opt/tool/go > out && ln -s out link && cp /bin/cat own",
        '[ "$(cat /app/link)" = made ] && [ "$(/app/own /app/out)" = made ]',
    )
    write_task(
        place / "settings",
        'ENV WHO="the world"\nWORKDIR /data/in\nCOPY notes.txt .\nWORKDIR /work\n',
        'echo "hello $WHO$MORE" > greeting; cp /data/in/notes.txt . && mv /data/in /data/done\n'
        "mkdir -p /logs/artifacts && echo a > /logs/artifacts/a",
        '[ "$PWD $(cat greeting notes.txt)" = "/work hello the world and all\nnote" ] && [ ! -e /data/in ] &&'
        ' [ "$MORE" = " and all" ] && [ -f /logs/artifacts/a ]',
        "[agent]\ntimeout_sec = 30\n[environment]\nmemory_mb = 256\n"
        '[environment.env]\nMORE = "${NO_SUCH_MORE:- and all}"\n',
    )
    (place / "settings" / "environment" / "notes.txt").write_text("note\n")
    write_task(
        place / "system",
        "RUN echo 'root:x:0:0::/root:/bin/sh' > /etc/passwd\nWORKDIR /app\n",
        """echo 'ann:x:5:5::/:/bin/sh' >> /etc/passwd; chmod 600 /etc/passwd; rm -r /srv/old /srv/one
mkdir -p /usr/local/lib && echo x > /usr/local/lib/x; cp /solution/more.txt /usr/more""",
        '[ "$(stat -c %a /etc/passwd)" = 600 ] && grep -q ann /etc/passwd && [ -f /usr/local/lib/x ] &&'
        ' [ -z "$(ls /srv)" ] && [ -s /usr/more ]',
    )
    (place / "system" / "solution" / "more.txt").write_text("more\n")
    return f"harbor:{place}"


@pytest.mark.parametrize("name", ["run", "settings", "system"])
async def test_the_reference_solution_and_one_that_does_nothing(tasks: str, name: str) -> None:
    task, journal = load_task(f"{tasks}:{name}"), MemoryJournal()
    solved = await Agent(oracle_for(task), journal=journal).run(task)
    assert solved.reward == 1.0, solved.results
    verified = await verify_run(journal, solved.run_id)
    assert verified.is_verified, verified.differences
    assert (await run(f"{tasks}:{name}", "true")).reward == 0.0
    assert set(load_task(f"{tasks}:{name}").files) == set()


async def test_steps_in_an_image_built_from_the_folder_of_the_task(
    image_folder: Path, tmp_path: Path
) -> None:
    place = tmp_path / "stepped"
    write_task(
        place,
        "COPY more.txt /srv/\nWORKDIR /app\n",
        "",
        "",
        '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
    )
    (place / "environment" / "root").rename(place / "root")
    (place / "more.txt").write_text("more\n")
    (place / "environment" / "docker-compose.yaml").write_text(
        "services: {main: {build: {context: ..,\n dockerfile: environment/Dockerfile}}}\n"
    )
    score = "if ({}); then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    write(
        place,
        steps__one__instruction_dot_md="Write one.\n",
        steps__one__solution__solve_dot_sh="cp /srv/more.txt one; rm /srv/one\n",
        steps__one__tests__test_dot_sh=score.format('[ "$(cat one)" = more ]; touch /srv/tested'),
        steps__two__instruction_dot_md="Write two.\n",
        steps__two__workdir__setup_dot_sh="mv one /srv/$(cat given.txt) && rm -r /srv/*ld && [ ! -e /srv/tested ]",
        steps__two__workdir__given_dot_txt="moved",
        steps__two__solution__solve_dot_sh="cp /srv/moved two\n",
        steps__two__tests__test_dot_sh=score.format("[ -f two ] && [ ! -e /srv/one ] && [ ! -e /srv/old ]"),
    )
    task, journal = load_task(f"harbor:{tmp_path}:stepped"), MemoryJournal()
    solved = await Agent(oracle_for(task), journal=journal).run(task)
    assert solved.reward == 1.0, solved.events[-1]
    verified = await verify_run(journal, solved.run_id)
    assert verified.is_verified, verified.differences


async def test_an_image_that_is_there_already(tasks: str, tmp_path: Path) -> None:
    (tool,) = load_task(f"{tasks}:run").tools
    shutil.copytree(f"{tasks.partition(':')[2]}/run", tmp_path / "given")
    (tmp_path / "given" / "environment" / "Dockerfile").unlink()
    image_id = parse_qs(tool.partition("?")[2])["root"][0]
    settings = f'[environment]\ndocker_image = "{image_id}"\nworkdir = "/srv"\n'
    write(
        tmp_path / "given",
        task_dot_toml=settings,
        tests__test_dot_sh="[ $PWD = /srv ] && echo 1 > /logs/verifier/reward.txt\n",
    )
    made = await run(f"harbor:{tmp_path}:given", "pwd; /opt/tool/go")
    assert made.results[0].content == "/srv\nmade\n"
    assert made.reward == 1.0


async def test_a_run_cannot_bring_its_own_tests(tasks: str) -> None:
    cheat = """mkdir /own; echo 'echo 1 > /logs/verifier/reward.txt' > /own/test.sh; ln -s /own /tests
ls -d /tests; mkdir -p /own/verifier; echo 1 > /own/verifier/reward.txt"""
    for more in ("", "; ln -s /own /logs", "; mkdir -p /logs; chmod 0 /logs"):
        made = await run(f"{tasks}:run", cheat + more)
        assert made.results[0].content.splitlines()[0] == "/tests"
        assert made.reward == 0.0
    assert (await run(f"{tasks}:run", "echo 1 > /tests; echo 1 > /logs")).reward == 0.0


def test_the_limits_of_a_task(tasks: str) -> None:
    (shell,) = resolve_tools(*load_task(f"{tasks}:settings").tools)
    assert "Limits: 30 seconds, 256 MiB" in shell.spec.description
    assert "Changes of files are kept" in shell.spec.description


@pytest.mark.sets(0)
def test_what_an_image_cannot_help(tasks: str, tmp_path: Path, caplog, monkeypatch) -> None:
    load_task(f"{tasks}:run")  # its image is that of the tasks here
    caplog.clear()
    for name in ("good", "pip", "gpu", "compose"):
        shutil.copytree(f"{tasks.partition(':')[2]}/run", tmp_path / name)
    write(tmp_path / "pip", tests__test_dot_sh="pip install no-such-package\n")
    write(tmp_path / "gpu", task_dot_toml="[environment]\ngpus = 1\n")
    (tmp_path / "compose" / "environment" / "docker-compose.yaml").write_text("services: {db: {image: x}}\n")
    write_task(tmp_path / "broken", "RUN echo because && exit 1\n", "true", "true")
    for name, why in (
        ("broken", "it needs .*has `FROM scratch`; its image cannot be built: `RUN echo .*` fails: because"),
        ("compose", r"it has several containers"),
        ("pip", "install what its image lacks, without a network: no-such-package; add it to the Dockerfile"),
        ("gpu", "its environment has gpus"),
    ):
        with pytest.raises(ConfigError, match=f"{name} cannot be run here: .*{why}"):
            load_task(f"harbor:{tmp_path}:{name}")
    assert caplog.text.count("an image is built from") == 1
    with pytest.raises(ConfigError, match="cannot be built"):
        load_task(f"harbor:{tmp_path}:broken")
    assert caplog.text.count("an image is built from") == 1
    (tmp_path / "broken" / "environment" / "more.txt").write_text("")
    with pytest.raises(ConfigError, match="cannot be built"):
        load_task(f"harbor:{tmp_path}:broken")
    assert caplog.text.count("an image is built from") == 2
    shutil.rmtree(tmp_path / "broken")
    assert find_tasks([f"harbor:{tmp_path}"]) == [f"harbor:{tmp_path}:good"]
    assert caplog.text.count("cannot be run here") == 3
    assert "3 of the 4 tasks of harbor:" in caplog.text
    monkeypatch.setenv("TREADLE_IMAGE_BUILDER", "none")
    assert load_task(f"harbor:{tmp_path}:good").tools == load_task(f"{tasks}:run").tools
    (tmp_path / "good" / "environment" / "more.txt").write_text("")
    with pytest.raises(ConfigError, match="FROM scratch`; TREADLE_IMAGE_BUILDER is 'none'"):
        load_task(f"harbor:{tmp_path}:good")
