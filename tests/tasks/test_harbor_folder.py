"""Rare parts of the folders of Harbor and terminal-bench: each has its effect, or is refused by name."""

import asyncio
import io
import re
import tarfile
from pathlib import Path

import pytest
from tests.tasks.test_foreign import run, solve

from treadle.core.errors import ConfigError
from treadle.core.events import Rewarded
from treadle.evals import evaluate
from treadle.runs.task import find_tasks, load_task
from treadle.tools.mcp.server_entries import mcp

HARBOR = {
    "task.toml": 'schema_version = "1.4"\n',
    "instruction.md": "Write ok into /app/out.txt.\n",
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "tests/test.sh": """#!/bin/bash
[ "$(cat /app/out.txt)" = ok ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
""",
    "solution/solve.sh": "#!/bin/bash\necho ok > /app/out.txt\n",
}
COMPOSE = """services:
  client:
    build: {context: ., dockerfile: Dockerfile}
    network_mode: none
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${T_BENCH_TEST_DIR}", MODE=fast]
    volumes: ["${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}"]
"""
BENCH = {
    "task.yaml": "instruction: Write ok.\n",
    "Dockerfile": "FROM ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624\nWORKDIR /app\n",
    "docker-compose.yaml": COMPOSE,
    "run-tests.sh": '[ "$(cat out.txt)" = ok ] && echo "= short test summary info =\nPASSED t::a"\n',
    "solution.sh": '[ "$MODE" = fast ] && echo ok > /app/out.txt\n',
}
HARBOR_COMPOSE = """services:
  main:
    build: {context: "${CONTEXT_DIR}"}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment: ["TEST_DIR=${TEST_DIR}", MODE=fast]
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - ${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}
    deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
"""
DOCKER = "environment/Dockerfile"
COMPOSED = "environment/docker-compose.yaml"
SOLUTION = "solution/solve.sh"


@pytest.fixture(autouse=True)
def _without_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_IMAGE_BUILDER", "none")


def write(place: Path, base: dict[str, str], changes: dict[str, str | bytes]) -> str:
    """Write a task, and return its reference. A value with a plus at the beginning is added to that of the base."""
    for name, content in {**base, **changes}.items():
        path = place / "odd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = base[name] + content[1:] if isinstance(content, str) and content[:1] == "+" else content
        path.write_bytes(whole if isinstance(whole, bytes) else whole.encode())
    return f"harbor:{place}:odd"


def test_a_kind_of_failures_has_no_output_of_the_tests(tmp_path: Path) -> None:
    """Output differs from run to run, so that each failure would be a kind of its own."""
    script = 'echo "in $RANDOM s"; echo 0 > /logs/verifier/reward.txt\n'
    reference = write(tmp_path, HARBOR, {"tests/test.sh": script})
    made = asyncio.run(
        evaluate(models=["mock:echo"], tasks=[reference], epochs=2, path=tmp_path / "evaluation")
    )
    assert [(item.kind, item.count) for item in made.results.failures] == [("its tests gave 0", 2)]
    assert "; the end of their output: in " in made.results.failures[0].example


def solved_if(test: str) -> str:
    return f"#!/bin/bash\nif {test}; then echo ok > /app/out.txt; fi\n"


PACKED = io.BytesIO()
with tarfile.open(fileobj=PACKED, mode="w:gz") as archive:
    archive.addfile(tarfile.TarInfo("inner.txt"))

EFFECTS: dict[str, dict[str, str | bytes]] = {
    "variables of the environment": {
        "task.toml": '[environment.env]\nMODE = "fast"\nLEVEL = "${NO_SUCH_LEVEL:-3}"\n',
        SOLUTION: solved_if('[ "$MODE$LEVEL" = fast3 ]'),
    },
    "variables of the Dockerfile": {
        DOCKER: "+ENV MODE='very fast'\n",
        SOLUTION: solved_if('[ "$MODE" = "very fast" ]'),
    },
    "the default of a variable of the tests": {
        "task.toml": '[verifier.env]\nGRADE = "${NO_SUCH_GRADE:-strict}"\n',
        "tests/test.sh": '[ "$GRADE" = strict ] && echo 1 > /logs/verifier/reward.txt\n',
    },
    "memory as a text": {
        "task.toml": '[environment]\nmemory = "64M"\n',
        SOLUTION: solved_if("! python3 -c 'bytearray(300 * 2**20)'"),
    },
    "arguments of the build": {
        DOCKER: "FROM ubuntu\nARG WORK=/app\nARG PART=${NOPE:-data}\nWORKDIR $WORK/$PART\nWORKDIR ..\n",
    },
    "a file that is copied to a folder": {
        DOCKER: "+COPY a.txt /app\nCOPY a.txt /srv\n",
        "environment/a.txt": "a",
        SOLUTION: solved_if("cmp /app/a.txt /srv/a.txt"),
    },
    "what is removed again": {
        DOCKER: "+COPY . /app/\nRUN rm -rf /app/secret /app/*.key && rm Dockerfile\n",
        "environment/secret/a.txt": "a",
        "environment/b.key": "b",
        "environment/in/c.key": "c",
        "environment/.d.key": "d",
        SOLUTION: solved_if('[ "$(ls /app)" = in ] && [ -f /app/in/c.key ] && [ -f /app/.d.key ]'),
    },
    "what the build ignores": {
        DOCKER: "+COPY . /app/\nCOPY *.key secret* /app/\n",
        "environment/.dockerignore": "# comment\n!secret/a.txt\nsecret\n**/*.key\n!keep.key\nDockerfile\n"
        ".dockerignore\n",
        "environment/secret/a.txt": "a",
        "environment/b.key": "b",
        "environment/in/b.key": "b",
        "environment/keep.key": "k",
        SOLUTION: solved_if('[ "$(ls /app)" = keep.key ] && [ ! -e /app/.dockerignore ]'),
    },
    "what the Dockerfile itself ignores": {
        COMPOSED: "services: {main: {build: {context: .., dockerfile: environment/Dockerfile}}}\n",
        DOCKER: "+COPY . /app/\n",
        ".dockerignore": "instruction.md\n",
        f"{DOCKER}.dockerignore": "tests\nsolution\nenvironment\n",
        SOLUTION: solved_if('[ ! -e tests ] && [ ! -e solution ] && [ -e instruction.md ]'),
    },
    "an earlier stage": {
        DOCKER: "FROM ubuntu AS first\nCOPY a.txt /secret/\nFROM ubuntu\nWORKDIR /app\n",
        "environment/a.txt": "a",
        SOLUTION: solved_if("[ ! -e /secret ]"),
    },
    "tests in another language": {
        "tests/test.sh": "#!/usr/bin/env python3\nopen('/logs/verifier/reward.txt', 'w').write('1')\n",
    },
    "a solution in another language": {SOLUTION: "#!/usr/bin/env python3\nopen('/app/out.txt', 'w').write('ok')\n"},
    "a solution with large files": {
        "solution/in/big.bin": bytes(range(256)) * 1000,
        SOLUTION: '#!/bin/bash\n[ "$(wc -c < "$(dirname "$0")/in/big.bin")" = 256000 ] && [ ! -e .solution ] &&'
        " echo ok > out.txt\n",
    },
    "artifacts": {
        SOLUTION: "+echo mine > /logs/artifacts/mine.txt\n",
        "tests/test.sh": "cp /logs/artifacts/mine.txt /logs/artifacts/copy && echo 1 > /logs/verifier/reward.txt\n",
    },
    "a file for Compose with one container": {
        "environment/docker-compose.yml": "services:\n  main:\n    environment: {MODE: fast}\n",
        SOLUTION: solved_if('[ "$MODE" = fast ]'),
    },
    "a file for Compose with the folders of logs": {
        COMPOSED: HARBOR_COMPOSE,
        SOLUTION: solved_if('[ "$MODE$TEST_DIR" = fast/tests ]'),
    },
    "volumes of the task's own files": {
        COMPOSED: """services:
  main:
    env_file: [../more/some.env, {path: absent.env, required: false}]
    environment: {FLAG: true, NOTHING: null, ONE: 1}
    tmpfs: /scratch:size=1m
    logging: {driver: none}
    volumes:
      - ./data:/app/data
      - ${CONTEXT_DIR}/../more/a.txt:/srv/a.txt:ro
      - {type: bind, source: ./data/in, target: /other, read_only: true}
      - cache:/cache
      - /anonymous
      - ./data:/tests
      - ./data/in://twice/../slashes
volumes: {cache: {}}
""",
        "environment/data/in/b.txt": "b",
        "more/a.txt": "a",
        "more/some.env": "# comment\nexport MODE='fast'\n",
        SOLUTION: solved_if(
            '[ "$MODE$(cat data/in/b.txt /srv/a.txt /other/b.txt /slashes/b.txt)" = fastbabb ] &&'
            ' [ "$FLAG-$NOTHING-$ONE" = true--1 ] && [ ! -e /tests/in ] &&'
            " touch /cache/x /anonymous/x /scratch/x && echo c > data/in/b.txt && rm /srv/a.txt &&"
            " echo bad > /other/b.txt && touch /other/new"
        ),
        "tests/test.sh": '[ "$(cat data/in/b.txt /srv/a.txt)" = "c\na" ] && [ "$(ls /other)" = b.txt ] &&'
        ' [ "$(cat /other/b.txt)" = b ] && echo 1 > /logs/verifier/reward.txt\n',
    },
    "options of pip that have values": {
        DOCKER: "+RUN pip install --retries 3 --timeout 60 --trusted-host example.org pip\n",
    },
    "a build from the folder of the task": {
        COMPOSED: "services: {main: {build: {context: '${CONTEXT_DIR}/..',"
        " dockerfile: '${CONTEXT_DIR}/Dockerfile'}}}\n",
        DOCKER: "+COPY more/ /app/\n",
        "more/a.txt": "a",
        SOLUTION: solved_if("[ -f /app/a.txt ]"),
    },
    "a build from a folder beside the file for Compose": {
        COMPOSED: "services: {main: {build: {context: ../more, dockerfile: in/Dockerfile}, working_dir: /app/x}}\n",
        "more/in/Dockerfile": "FROM ubuntu\nWORKDIR /app/in\nCOPY in /app/x\n",
        SOLUTION: solved_if('[ "$PWD" = /app/x ] && [ -f Dockerfile ]'),
    },
    "a solution that uses the absolute path of its folder": {
        "solution/in/more.sh": "echo ok > /app/out.txt\n",
        SOLUTION: "sh /solution/in/more.sh\n",
        "tests/test.sh": "+[ ! -e /solution ] || echo 0 > /logs/verifier/reward.txt\n",
    },
    "the home folder of the user": {
        SOLUTION: '+mkdir -p ~/.keys && echo k > "$HOME/.keys/own"\n',
        "tests/test.sh": "[ -f /root/.keys/own ] && [ ~ = /root ] && echo 1 > /logs/verifier/reward.txt\n",
    },
    "the home folder of another user": {
        DOCKER: "+USER me\n",
        SOLUTION: solved_if("[ ~ = /home/me ] && touch ~/x && [ -f /home/me/x ]"),
    },
    "lines of a Dockerfile that make files": {
        DOCKER: """FROM ubuntu
ARG WHO=me
ENV LEVEL=3
COPY make.py /tmp/
RUN apt-get update && mkdir -p /data/in && echo "a\\nb $LEVEL" > /data/in/a.txt && printf %s "$WHO" > ~/who
WORKDIR /app
RUN python3 /tmp/make.py && rm /tmp/make.py
RUN echo '#!/bin/sh' > run.sh && chmod +x run.sh
""",
        "environment/make.py": "import os; os.makedirs('empty'); open('/data/made', 'w').write('made')\n",
        SOLUTION: solved_if('[ "$(cat /data/in/a.txt)" = "a\nb 3" ] && [ "$(cat ~/who /data/made)" = memade ]'
        " && ./run.sh && [ -d empty ] && [ -z \"$(ls /tmp | grep make)\" ]"),
    },
    "texts within a Dockerfile": {
        DOCKER: """+ENV LEVEL=3
COPY <<EOF /app/level.txt
# level $LEVEL \\
  end, \\$LEVEL
EOF
COPY --chmod=755 <<'EOF' <<-"OTHER.txt" /data/
echo "$1" EOF
EOF
\tRUN nothing-such
\tOTHER.txt
RUN <<EOF
# a script of its own
set -e
for name in a b; do
  echo "$name" >> /app/names
done
EOF
RUN <<EOF
#!/usr/bin/env python3
open("/app/python", "w").write("é" * 2)
EOF
RUN cat <<EOF > /app/both && python3 - <<'END' && echo "no <<MARK" > /app/mark
curl $LEVEL
EOF
open("/app/two", "w").write("$LEVEL")
END
RUN echo "<<EOF" $((1<<2)) > /app/shift
""",
        SOLUTION: solved_if(
            '[ "$(cat level.txt)" = "# level 3 \n  end, \\$LEVEL" ] && [ "$(sh /data/EOF hi)" = "hi EOF" ] &&'
            ' [ "$(cat /data/OTHER.txt)" = "RUN nothing-such" ] && [ "$(cat names)" = "a\nb" ] &&'
            ' [ "$(cat python)" = éé ] && [ "$(cat both two)" = "curl 3\n\\$LEVEL" ] &&'
            ' [ "$(cat mark)" = "no <<MARK" ] && [ "$(cat shift)" = "<<EOF 4" ]'
        ),
    },
    "files in /tmp, which last": {
        DOCKER: "+COPY a.txt /tmp/in/\nCOPY a.txt /tmp\nRUN date > /tmp/made\n",
        "environment/a.txt": "a",
        SOLUTION: solved_if("cmp /tmp/in/a.txt /tmp/a.txt && [ -s /tmp/made ] && echo b > /tmp/b"),
        "tests/test.sh": "+[ -f /tmp/b ] || echo 0 > /logs/verifier/reward.txt\n",
    },
    "a file in place of the folder for rewards": {
        SOLUTION: "+mkdir -p /logs; echo > /logs/verifier\n",
    },
    "an artifact in /tmp": {
        "task.toml": "artifacts = ['/tmp/b']\n[verifier]\nenvironment_mode = 'separate'\n",
        SOLUTION: "echo b > /tmp/b\n",
        "tests/test.sh": "cat /tmp/b && echo 1 > /logs/verifier/reward.txt\n",
    },
    "a working folder in /tmp": {
        DOCKER: "FROM ubuntu\nWORKDIR /tmp/work\nCOPY a.txt ./in/\n",
        "environment/a.txt": "a",
        SOLUTION: "[ -f in/a.txt ] && cp in/a.txt /tmp/work/b\n",
        "tests/test.sh": "[ -f b ] && [ $PWD = /tmp/work ] && echo 1 > /logs/verifier/reward.txt\n",
    },
    "a program that a line makes": {
        DOCKER: "+RUN mkdir bin && cp /bin/echo bin/say\nRUN bin/say built > built\n",
        SOLUTION: solved_if('[ "$(bin/say hi)" = hi ] && [ "$(cat built)" = built ]'),
        "tests/test.sh": "+[ \"$(/app/bin/say yes)\" = yes ] || echo 0 > /logs/verifier/reward.txt\n",
    },
    "texts within the script of the tests": {
        "tests/test.sh": "+cat > /dev/null <<'EOF'\ncurl https://example.org\nEOF\n",
    },
    "uv in the image": {
        DOCKER: "+RUN curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh\n"
        "COPY --from=ghcr.io/astral-sh/uv:0.8 /uv /uvx /bin/\n",
        "tests/test.sh": "+source $HOME/.local/bin/env || echo 0 > /logs/verifier/reward.txt\n",
    },
    "another spelling of the system": {"task.toml": '[environment]\nos = "Linux"\n'},
    "one user for the agent and the tests": {"task.toml": '[agent]\nuser = "me"\n[verifier]\nuser = "me"\n'},
}  # fmt: skip


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.sets(8)
async def test_what_a_folder_of_harbor_says_has_its_effect(tmp_path: Path, name: str) -> None:
    reference = write(tmp_path, HARBOR, EFFECTS[name])
    made = await solve(reference)
    assert made.reward == 1.0, made.results


async def test_commands_of_the_agent_see_the_variables_of_a_task(tmp_path: Path) -> None:
    changes: dict[str, str | bytes] = {
        DOCKER: "+ENV FROM_IMAGE='a&b=c'\n",
        "task.toml": '[environment.env]\nEMPTY = ""\nOTHER = "d e"\n[verifier.env]\nHIDDEN = "x"\n',
    }
    command = 'echo "$FROM_IMAGE|${EMPTY-unset}|$OTHER|${HIDDEN-unset}"'
    made = await run(write(tmp_path, HARBOR, changes), command)
    assert made.results[0].content.splitlines()[-1] == "a&b=c||d e|unset"


async def test_a_folder_of_terminal_bench_whose_container_has_a_name_of_its_own(tmp_path: Path) -> None:
    docker = "FROM ghcr.io/laude-institute/t-bench/ubuntu-24-04:20250624\n"  # which works in /app
    named = COMPOSE.replace("client:", "agent-environment:")
    assert (
        await solve(write(tmp_path, BENCH, {"Dockerfile": docker, "docker-compose.yaml": named}))
    ).reward == 1.0


async def test_a_folder_of_terminal_bench_with_variables_and_repeated_tests(tmp_path: Path) -> None:
    again = 'echo "= short test summary info =\nFAILED t::a - at first - boom\nPASSED t::a"\n'
    assert (await solve(write(tmp_path / "a", BENCH, {}))).reward == 1.0
    assert (await solve(write(tmp_path / "b", BENCH, {"run-tests.sh": again}))).reward == 1.0


def test_the_marks_of_a_data_set_are_not_shown(tmp_path: Path) -> None:
    for mark in ("<!-- harbor-canary GUID 12 -->\n\n", "# terminal-bench-canary 12\n<!-- CANARY -->\n"):
        said = load_task(write(tmp_path, HARBOR, {"instruction.md": f"{mark}# Title\nWrite.\n"})).input
        assert said == "# Title\nWrite."


SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


@pytest.mark.parametrize("has_own", [False, True])
async def test_separate_tests_find_only_the_artifacts_of_the_run(tmp_path: Path, has_own: bool) -> None:
    """Else an agent could change what its tests use."""
    script = """
[ "$(cat out/made.txt)" = made ] && [ ! -e out/old.txt ] && [ ! -e other.txt ] && [ -f /logs/artifacts/x ] &&
[ "$(cat tool.py)" = TOOL ] && echo 1 > /logs/verifier/reward.txt
"""
    parts: dict[str, str | bytes] = {
        "task.toml": f"artifacts = ['out', {{source = '/app/made.txt'}}]\n{SEPARATE}",
        DOCKER: "FROM ubuntu\nWORKDIR /app\nCOPY tool.py .\nRUN mkdir out && touch out/old.txt\n",
        "environment/tool.py": "agent's" if has_own else "good",
        "tests/test.sh": script.replace("TOOL", "own" if has_own else "good"),
        "solution/solve.sh": "rm out/old.txt; printf made > out/made.txt; touch other.txt; echo bad > tool.py\n"
        "touch /logs/artifacts/x",
    }
    if has_own:
        parts["tests/Dockerfile"] = "FROM ubuntu\nWORKDIR /app\nCOPY . /tests/\nCOPY own.py /app/tool.py\n"
        parts["tests/own.py"] = "own"
    done = await solve(write(tmp_path, HARBOR, parts))
    assert done.reward == 1.0, done.events[-1]


def test_a_line_that_runs_in_the_sandbox_runs_once(tmp_path: Path) -> None:
    reference = write(tmp_path, HARBOR, {DOCKER: "+RUN date +%N > /app/time\n"})
    made = [load_task(reference).files["time"] for _ in range(3)]
    assert len(set(made)) == 1
    write(tmp_path, HARBOR, {DOCKER: "+RUN date +%N > /app/time && true\n"})
    assert load_task(reference).files["time"] != made[0]


def test_an_agent_is_told_about_skills(tmp_path: Path) -> None:
    told = load_task(
        write(tmp_path, HARBOR, {"task.toml": '[environment]\nskills_dir = "/skills"\n'})
    ).instructions
    assert told is not None
    assert "The folder /skills has skills." in told


def test_each_of_two_dockerfiles_of_a_folder_makes_what_it_says(tmp_path: Path) -> None:
    for name in "ab":
        compose = f"services: {{main: {{build: {{context: ../more, dockerfile: {name}}}}}}}\n"
        more = {f"more/{key}": f"FROM ubuntu\nWORKDIR /app\nCOPY {key} /app/\n" for key in "ab"}
        assert [*load_task(write(tmp_path, HARBOR, {COMPOSED: compose, **more})).files] == [name]


SERVER = "[[environment.mcp_servers]]\nname = 'a'\n{}\n"


def test_a_server_in_the_public_network_is_a_toolset(tmp_path: Path) -> None:
    settings = SERVER.format("transport = 'http'\nurl = 'https://example.org/mcp'\nheaders = {X = 'y'}")
    _, *others = load_task(write(tmp_path, HARBOR, {"task.toml": settings})).tools
    ((server,),) = [mcp(text.removeprefix("mcp:")).servers for text in others]
    assert server.source == {
        "url": "https://example.org/mcp",
        "type": "http",
        "publicOnly": True,
        "headers": {"X": "y"},
    }
    assert server.target.is_public_only
    assert (
        load_task(write(tmp_path, HARBOR, {"task.toml": "[environment]\nmcp_servers = []\n"})).tools[1:] == ()
    )


def test_a_container_without_a_build_has_the_image_of_its_file_for_compose(tmp_path: Path) -> None:
    reference = write(tmp_path, HARBOR, {COMPOSED: "services: {main: {image: 'own:1'}}\n"})
    assert ",/app?" in load_task(reference).tools[0]  # it is only the name that the build gets
    (tmp_path / "odd" / DOCKER).unlink()
    with pytest.raises(ConfigError, match="it needs its image: its image is 'own:1'"):
        load_task(reference)


GRADES = {
    'echo \'{"a": 1, "b": 0.5}\' > reward.json': 0.75,
    "echo '{\"reward\": true}' > reward.json": 1.0,
    'echo \'{"reward": "1"}\' > reward.json': None,
    "echo 1 > reward.json": None,
    "echo '[1]' > reward.json": None,
    "echo '{}' > reward.json; echo 1 > reward.txt": None,
    'python3 -c \'print("{\\"reward\\": 1" + "0" * 400 + "}")\' > reward.json': None,
    "echo ' 1 ' > reward.txt; exit 3": 1.0,
    "echo 1 > reward.txt; sleep 60": None,
}
"""What the tests do, and the reward that Harbor reads; `None` if it reads none."""


@pytest.mark.parametrize("command", GRADES)
async def test_the_reward_is_that_of_harbor(tmp_path: Path, command: str) -> None:
    changes: dict[str, str | bytes] = {
        "task.toml": "[verifier]\ntimeout_sec = 3\n",
        "tests/test.sh": f"cd /logs/verifier; {command}\n",
    }
    made = await solve(write(tmp_path, HARBOR, changes))
    assert made.reward == (GRADES[command] or 0.0)
    if GRADES[command] is None:
        rewarded = next(event for event in reversed(made.events) if isinstance(event.body, Rewarded))
        assert "wrote no reward" in str(rewarded) or "a reward that is no number" in str(rewarded)


REFUSALS: dict[str, dict[str, str | bytes]] = {
    "has `RUN nothing-such.*nothing-such: command not found": {DOCKER: "+RUN nothing-such > /app/x\n"},
    "has `RUN ln -s .*it makes 'link'": {DOCKER: "+RUN ln -s /etc/hosts link\n"},
    "has `RUN echo > own && chmod .*it makes 'own'": {DOCKER: "+RUN echo > own && chmod +x own && date > x\n"},
    "has `RUN curl https://example.org": {DOCKER: "+RUN curl https://example.org | sh\n"},
    "has files in '/etc/x', which the sandbox has": {DOCKER: "+COPY a.txt /etc/x\n", "environment/a.txt": "a"},
    "its Dockerfile writes '/app/x' with variables that are not known": {DOCKER: "+COPY <<E /app/x\n$ODD\nE\n"},
    "its Dockerfile writes '/app/y' with variables that are not known": {DOCKER: "+COPY <<E /app/y\n$PATH\nE\n"},
    "its Dockerfile writes '/app/z' with variables that are not known": {DOCKER: "+COPY <<E /app/z\n$@\nE\n"},
    "its Dockerfile installs what is not here: oddly-named": {DOCKER: "+RUN <<E\npip install oddly-named\nE\n"},
    "has `RUN cat <<E > /app/x.*nothing-such: command not found": {
        DOCKER: "+RUN cat <<E > /app/x; nothing-such\ncurl https://example.org\nE\n"
    },
    "it needs its image: its Dockerfile has `FROM`": {DOCKER: "FROM\nWORKDIR /app\n"},
    "it needs its image: its Dockerfile has `ENV A=\"x`: No closing": {DOCKER: '+ENV A="x\n'},
    "it needs its image: its Dockerfile copies `\\.\\./": {DOCKER: "+COPY ../../../etc/hostname /app/\n"},
    "it needs its image: its Dockerfile copies `a.tar.gz": {
        DOCKER: "+ADD a.tar.gz /app/\n",
        "environment/a.tar.gz": PACKED.getvalue(),
    },
    "it needs its image: its Dockerfile has the path '\\$HOME": {DOCKER: "+WORKDIR $HOME/x\n"},
    "its image starts `\\[\"/app/serve.sh": {DOCKER: '+ENTRYPOINT ["/app/serve.sh"]\n'},
    "its agent and its tests work as the users 'me' and 'root'": {"task.toml": '[agent]\nuser = "me"\n'},
    "its tests run in a container of their own: it needs its image": {
        "task.toml": '[verifier.environment]\ndocker_image = "x"\n'
    },
    "its artifact '\\.\\./x' has no path": {"task.toml": f"artifacts = ['../x']\n{SEPARATE}"},
    "its artifact '/app' has exclude or service": {
        "task.toml": f"artifacts = [{{source = '/app', exclude = ['*.o']}}]\n{SEPARATE}"
    },
    "it has files in '/etc/x', which the sandbox has itself": {"task.toml": f"artifacts = ['/etc/x']\n{SEPARATE}"},
    "its verifier has collect": {"task.toml": '[[verifier.collect]]\ncommand = "true"\n'},
    "its agent has earlier answers": {"trajectory.json": "{}"},
    "its verifier.timeout_sec is 'soon'; give a number": {"task.toml": '[verifier]\ntimeout_sec = "soon"\n'},
    "its agent.timeout_sec is inf; give a number": {"task.toml": "[agent]\ntimeout_sec = inf\n"},
    "its environment.memory_mb is 'lots'": {"task.toml": '[environment]\nmemory_mb = "lots"\n'},
    "its environment.workdir is 'app'; give an absolute path": {"task.toml": "[environment]\nworkdir = 'app'\n"},
    "its environment.workdir is \\['/app'\\]; give": {"task.toml": "[environment]\nworkdir = ['/app']\n"},
    "its healthcheck has the commands \\[None\\]; give": {"task.toml": "[environment.healthcheck]\nretries = 1\n"},
    "its Dockerfile copies 'a.key', which is not there": {
        DOCKER: "+COPY a.key /app/\n",
        "environment/a.key": "a",
        "environment/.dockerignore": "*.key\n",
    },
    "its environment is 3; write a table": {"task.toml": "environment = 3\n"},
    "its verifier.env.A needs the variable 'NO_SUCH_KEY'": {"task.toml": '[verifier.env]\nA = "${NO_SUCH_KEY}"\n'},
    "its environment.env.A needs the variable 'HOME' from": {"task.toml": '[environment.env]\nA = "${HOME}"\n'},
    "several containers.*main, db": {COMPOSED: "services: {main: {}, db: {image: x}}\n"},
    "built from `context: \\.\\./\\.\\.`, which leads out of its folder": {
        COMPOSED: "services: {main: {build: ../..}}\n"
    },
    "its image is built with 'target'": {COMPOSED: "services: {main: {build: {target: x}}}\n"},
    "its container has 'privileged'": {COMPOSED: "services: {main: {privileged: true}}\n"},
    "its container runs `serve`": {COMPOSED: "services: {main: {command: serve}}\n"},
    "its container has the volume './d' .*which is not there": {
        COMPOSED: "services: {main: {volumes: ['./d:/d']}}\n"
    },
    "its container has the volume '../../d' .*leads out of its folder": {
        COMPOSED: "services: {main: {volumes: ['../../d:/d']}}\n"
    },
    "its container has the volume '/var/run/docker.sock' .*leads out of its folder": {
        COMPOSED: "services: {main: {volumes: ['/var/run/docker.sock:/var/run/docker.sock']}}\n"
    },
    "its container has the volume '~/.ssh:/keys'": {COMPOSED: "services: {main: {volumes: ['~/.ssh:/keys']}}\n"},
    "its volume 'shared' has external": {
        COMPOSED: "services: {main: {volumes: ['shared:/d']}}\nvolumes: {shared: {external: true}}\n"
    },
    "its container has the env_file '.env', which is not there": {
        COMPOSED: "services: {main: {env_file: .env}}\n"
    },
    "its container has the env_file 'b.env', which is no text": {
        COMPOSED: "services: {main: {env_file: b.env}}\n",
        "environment/b.env": b"\xff",
    },
    "its container has the variable '' .*which cannot be set": {
        COMPOSED: "services: {main: {environment: ['=x']}}\n"
    },
    **{
        f"its container has the volume .*{name}.*, which Treadle cannot give it": {
            COMPOSED: f"services: {{main: {setting}}}\n"
        }
        for name, setting in {
            "'scratch'": "{tmpfs: scratch}",
            "'target': ''": "{tmpfs: [':size=1m']}",
            "'target': '/'": "{tmpfs: /}",
            "c:/": "{volumes: ['c:/']}",
            "./d:/a/..": "{volumes: ['./d:/a/..']}",
            ":/.{OTHER}/d": "{volumes: ['./d:/${OTHER}/d']}",
            "x00": '{volumes: ["./d\\0:/d"]}',
        }.items()
    },
    "its environment.mcp_servers are 3; write tables": {"task.toml": "[environment]\nmcp_servers = 3\n"},
    "mcp_servers has 'a' with the transport 'stdio', which Treadle cannot start": {
        "task.toml": SERVER.format("transport = 'stdio'\ncommand = 'serve'")
    },
    "mcp_servers has 'a' with the transport 'odd' and the url None": {
        "task.toml": SERVER.format("transport = 'odd'")
    },
    "mcp_servers has 'a' at 'http://side:80/mcp', which only its containers": {
        "task.toml": SERVER.format("url = 'http://side:80/mcp'")
    },
    "mcp_servers has 'a' at 'http://127.0.0.1:80/mcp', which only its containers": {
        "task.toml": SERVER.format("url = 'http://127.0.0.1:80/mcp'")
    },
    **{
        f"mcp_servers has 'a' at '{re.escape(url)}', which only its containers": {
            "task.toml": SERVER.format(f"transport = 'http'\nurl = '{url}'")
        }
        for url in (
            *("http://127.1/", "http://0x7f.1/", "http://0177.0.0.1/", "http://localhost./", "http://a.LOCAL./"),
            *("http://169.254.169.254/", "http://[::ffff:127.0.0.1]/", "http://[64:ff9b::7f00:1]/"),
            *("http://[fec0::1]/", "http://metadata.google.internal./"),
        )
    },
    "'http://\\[bad/' is not the URL of a server": {
        "task.toml": SERVER.format("transport = 'http'\nurl = 'http://[bad/'")
    },
    "'ftp://example.org/' is not the URL of a server": {
        "task.toml": SERVER.format("transport = 'http'\nurl = 'ftp://example.org/'")
    },
    "holds a user or password": {
        "task.toml": SERVER.format("transport = 'http'\nurl = 'https://u:p@example.org/'")
    },
    "mcp_servers has 'a' with variables from outside": {
        "task.toml": SERVER.format("url = 'https://example.org/mcp'\nheaders = {X = '${HOME}'}")
    },
    "mcp_servers need a network": {
        "task.toml": "[agent]\nnetwork_mode = 'no-network'\n" + SERVER.format("url = 'https://example.org/mcp'")
    },
    "its container has the volume '.*_PATH}:/d'": {
        COMPOSED: "services: {main: {volumes: ['${HOST_AGENT_LOGS_PATH}:/d']}}\n"
    },
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSALS)
@pytest.mark.sets(len(REFUSALS))
def test_what_treadle_cannot_give_a_task_is_refused_by_name(tmp_path: Path, why: str) -> None:
    with pytest.raises(ConfigError, match=f"harbor:.*:odd cannot be run here: .*{why}"):
        load_task(write(tmp_path, HARBOR, REFUSALS[why]))


BENCH_REFUSALS: dict[str, dict[str, str | bytes]] = {
    "several containers.*client, db": {"docker-compose.yaml": f"{COMPOSE}  db: {{image: postgres}}\n"},
    "its tests run in the agent's shell": {"task.yaml": "instruction: x\nrun_tests_in_same_shell: true\n"},
    "needs the variable 'NO_SUCH_KEY'": {
        "docker-compose.yaml": COMPOSE.replace("MODE=fast", '"MODE=${NO_SUCH_KEY}"')
    },
}


@pytest.mark.parametrize("why", BENCH_REFUSALS)
def test_what_treadle_cannot_give_a_task_of_terminal_bench(tmp_path: Path, why: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be run here: .*{why}"):
        load_task(write(tmp_path, BENCH, BENCH_REFUSALS[why]))


@pytest.mark.parametrize("part", ["environment/k", "instruction.md", "tests/data", "solution/k"])
def test_a_link_out_of_a_folder_does_not_show_files_of_this_machine(tmp_path: Path, part: str) -> None:
    reference = write(tmp_path, HARBOR, {DOCKER: "+COPY . /app/\n"})
    write(tmp_path / "good", HARBOR, {})
    link = tmp_path / "odd" / part
    link.unlink(missing_ok=True)
    (tmp_path / "secret").write_text("secret")
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=f"its '{part}' is a link that leads out of its folder"):
        load_task(reference)
    link.unlink()
    link.symlink_to(tmp_path / "odd" / "task.toml")
    assert find_tasks([reference.removesuffix(":odd")]) == [reference]


def test_a_builder_that_is_not_there_builds_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="TREADLE_IMAGE_BUILDER is 'none'"):
        load_task(write(tmp_path, HARBOR, {DOCKER: "FROM postgres\n"}))
    assert "is built" not in caplog.text
