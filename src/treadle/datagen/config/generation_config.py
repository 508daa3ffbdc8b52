"""The configuration as pydantic models. Field docstrings are the descriptions in the published JSON Schema."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.datagen.scenarios.scenario import Difficulty, Kind
from treadle.jobs.sections import ConfigSection, Count, LimitSection, Share
from treadle.knowledge.personas.persona import ToolsetTable
from treadle.models.config.tables import ModelTable

Window = Annotated[int, Field(ge=1, le=10_000)]
Weight = Annotated[float, Field(ge=0)]
Role = Literal["topics", "scenarios", "agent", "user", "judge"]
"""The role of a model in a generation."""


class Models(ConfigSection):
    """The models, each as `provider:name`, as a name of treadle.toml, or with its settings. A role without a model
    uses `default`."""

    default: str | ModelTable | None = None
    """The model of every role for which no model is given. Default: the default model of treadle.toml."""
    topics: str | ModelTable | None = None
    """The writer of topics; a small model is enough."""
    scenarios: str | ModelTable | None = None
    """The writer of scenarios."""
    agent: str | ModelTable | None = None
    """The agent, whose conversations are the rows."""
    user: str | ModelTable | None = None
    """The simulated user."""
    judge: str | ModelTable | None = None
    """The judge, if `quality.judge` is given."""


class Topics(ConfigSection):
    """The topics, which are built from a prompt or loaded from a file."""

    prompt: str = ""
    """The root topic. It is required unless topics are loaded."""
    mode: Literal["tree", "graph"] = "tree"
    """`graph` adds links between topics, which do not change the number of leaf topics."""
    instructions: str = ""
    """Further instructions for the writer of topics."""
    degree: Annotated[int, Field(ge=1, le=50)] = 5
    """How many subtopics each topic has."""
    depth: Annotated[int, Field(ge=1, le=10)] = 2
    """How many levels there are below the root."""
    load: Path | None = None
    """A file of topics to use instead of building them."""
    window: Window = 16
    """How many topics are expanded at the same time."""
    max_attempts: Count = 3
    """How often a topic is expanded before it is recorded as failed."""
    similarity: Share = 0.85
    """Topics that are at least this similar are merged."""


class Conversation(ConfigSection):
    """The form of the conversations."""

    type: Literal["basic", "cot", "agent"] = "agent"
    """`basic`: questions and answers. `cot`: answers with a chain of thought. `agent`: an agent that uses tools."""
    reasoning: Literal["freetext", "agent"] | None = None
    """The form of the reasoning in rows: `freetext` is one text, `agent` the thought of each step. `cot` needs one;
    agents have `agent`."""
    min_turns: Count = 1
    """The smallest number of turns that the simulated user plans for."""
    max_turns: Count = 1
    """The largest number of turns: user messages that are answered."""
    output_schema: dict[str, Json] | None = None
    """A JSON Schema for the answers, which become the rows."""


class Personas(ConfigSection):
    """The population of simulated users."""

    roles: list[str] = []
    """Occupations to draw from; by default, the built-in ones."""
    styles: list[str] = []
    """Ways of writing to draw from; by default, the built-in ones."""


class Generation(ConfigSection):
    """The samples."""

    num_samples: Count | Annotated[str, Field(pattern=r"^(auto|\d+(\.\d+)?\s*%)$")] = "auto"
    """The number of rows: a number, `auto` for one for each leaf topic, or a percentage of that, such as `50%`."""
    instructions: str = ""
    """The agent's system message while the conversations are made."""
    guidance: str = ""
    """Further instructions for the writer of scenarios."""
    conversation: Conversation = Conversation()
    """The form of the conversations."""
    kinds: dict[Kind, Weight] = {}
    """The weights of the kinds of tool use; by default, a built-in mix of the kinds that are possible."""
    difficulties: dict[Difficulty, Weight] = {}
    """The weights of the difficulties; by default, all are equally frequent."""
    personas: Personas = Personas()
    """The simulated users."""
    window: Window = 32
    """How many samples are made at the same time."""
    workers: str = "here"
    """Where the runs of samples are driven: `here`, `local:N` in N worker processes, or `ray`."""
    max_attempts: Count = 3
    """How many samples are planned for each wanted row, on average, before the generation stops."""
    answer_repairs: Annotated[int, Field(ge=0, le=5)] = 2
    """How often the agent is asked again for a single answer, with the reasons, if a filter rejects it and another
    answer could pass. Answers are checked before the simulated user continues, and at the end. If an answer cannot
    be kept, the conversation ends. The row contains neither the rejected answers nor the messages that asked for
    others. With 0, answers are checked only at the end."""
    sample_attempts: Count = 2
    """How often a planned sample is attempted, including the first attempt. A rejected sample is made again with
    the reasons as feedback."""


class Tools(ConfigSection):
    """The agent's tools and its environment."""

    use: list[str | ToolsetTable] = []
    """Toolsets by name, as for `treadle run --tools`, or with settings. Paths are relative to this file."""
    definitions: list[dict[str, Json]] = []
    """Definitions of tools whose results are simulated, in the shape of DeepFabric, OpenAI or MCP."""
    files: str | dict[str, str] | None = None
    """The initial files of each sample: a folder, a mapping of path to content, or `tasks:SET`, whose tasks bring
    their files."""
    max_steps: Count = 10
    """How many inferences a turn may have."""
    max_calls: Count | None = None
    """How many tool calls a turn may have."""

    @property
    def task_set(self) -> str | None:
        """The name of the task set whose tasks bring the files; `None` if `files` names none."""
        is_set = isinstance(self.files, str) and self.files.startswith("tasks:")
        return str(self.files).removeprefix("tasks:") if is_set else None

    @property
    def folder(self) -> Path | None:
        """The folder with the files; `None` if `files` names none."""
        is_folder = isinstance(self.files, str) and self.task_set is None
        return Path(str(self.files)).expanduser() if is_folder else None

    def parts(self) -> tuple[PartSpec, ...]:
        """Return the toolsets of `use` for `resolve_tools`."""
        return tuple([PartSpec(name=item) if isinstance(item, str) else item.part for item in self.use])


class Judge(ConfigSection):
    """A model that grades samples by a rubric."""

    rubric: str
    """What a good sample is, in words."""
    min_score: Share = 0.6
    """The lowest score of a kept row."""


class Quality(ConfigSection):
    """The filters. Each has a default; `false` switches one off, and an object holds its settings."""

    filters: dict[str, bool | dict[str, Json]] = {}
    """Filters by name, or your own as `file.py:Class`; see the documentation for their settings."""
    lower: dict[str, Annotated[float, Field(ge=0, lt=1)]] = {}
    """Weights by filter: a sample that this filter would reject is kept with this weight, and with the product if
    several would. With 0, its answers are not trained on. Another answer is asked for first, if one could pass."""
    evaluation_sets: list[Path] = []
    """Files of rows that the dataset must not overlap."""
    judge: Judge | None = None
    """A model that grades samples; it asks `models.judge`."""


class OutputSection(ConfigSection):
    """The dataset."""

    path: Path = Path("dataset")
    """The folder of the dataset, which is `--out` on the command line."""
    formats: list[str] = ["trl"]
    """The formats in which the rows are written, as for `treadle export --format`."""
    splits: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)] = {"train": 1.0}
    """The splits with their weights. No topic is in two splits."""
    system_message: str | None = None
    """The system message in the rows; by default, the agent's instructions."""
    include_system_message: bool = True
    """False to write rows without a system message."""
    parquet: bool = False
    """True to write Parquet files too."""


class HuggingFace(ConfigSection):
    """A repository on the Hugging Face Hub."""

    repository: str
    """The repository, as `owner/name`."""
    private: bool = False
    """True to make the repository private."""
    tags: list[str] = []
    """The tags of the dataset."""


class Kaggle(ConfigSection):
    """A dataset on Kaggle."""

    handle: str
    """The dataset, as `owner/name`."""
    tags: list[str] = []
    """The tags of the dataset."""
    description: str = ""
    """The description of the dataset; by default, the one of its card."""
    version_notes: str = ""
    """What is new in this version."""


class Publish(ConfigSection):
    """Where `treadle publish` uploads the dataset."""

    license: str | None = None
    """The licence of the dataset as an SPDX identifier, such as `CC-BY-4.0`."""
    sources: dict[str, str] = {}
    """The licences of the sources, by name of the source."""
    huggingface: HuggingFace | None = None
    """The repository on the Hugging Face Hub."""
    kaggle: Kaggle | None = None
    """The dataset on Kaggle."""


class GenerationConfig(ConfigSection):
    """The configuration of one dataset."""

    name: str = "dataset"
    """The name of the dataset, which is also in its runs and its card."""
    seed: int = 0
    """The seed of the plan, of the personas and of the models' sampling."""
    models: Models = Models()
    """The models."""
    topics: Topics
    """The topics."""
    generation: Generation = Generation()
    """The samples."""
    tools: Tools = Tools()
    """The agent's tools and its environment."""
    quality: Quality = Quality()
    """The filters."""
    limits: LimitSection = LimitSection()
    """The limits of the whole generation."""
    output: OutputSection = OutputSection()
    """The dataset."""
    publish: Publish = Publish()
    """Where the dataset is uploaded."""
