"""The mapping of DeepFabric's configurations of evaluations to Treadle's keys, with a note for each key."""

from pathlib import PurePath
from typing import Any

from treadle.core.registry import did_you_mean, name_known
from treadle.core.texts.documents import read_data
from treadle.core.texts.places import Document, Mapped
from treadle.core.types import Json
from treadle.jobs.foreign_keys import KeyMapper

_KEYS = read_data(__package__, "deepfabric_evaluations")
_METRICS: dict[str, str] = _KEYS["scorers"]
_TREADLE = frozenset(("models", "tasks", "rows", "rewards", "epochs"))


def map_deepfabric_evaluation(document: Document) -> Mapped | None:
    """Return the configuration of an evaluation of DeepFabric in Treadle's keys; `None` if it is not one.

    It is the content of an `EvaluatorConfig`, or a file with a section `evaluation`. Scorers of the same names
    score by value; those that begin with `deepfabric_` have the weight 0 and give DeepFabric's figures.
    """
    keys = document.value.keys()
    if keys & _TREADLE or not keys & set(_KEYS["lists"]["own"].split()):
        return None
    mapper = _Mapper(document, _KEYS)
    mapper.map_names()
    mapper.map_turns()
    mapper.map_rows()
    mapper.map_model()
    mapper.map_scorers()
    mapper.map_reports()
    mapper.map_rest()
    return mapper.result()


class _Mapper(KeyMapper):
    _has_turns = False
    """True if a sample is a whole conversation."""

    def map_rows(self) -> None:
        """Map the file of rows, which is the output of a generation if the file says so."""
        for key in ("dataset_path", "output.save_as"):
            if (path := self.find(key)) is None:
                continue
            if self._has_turns:
                self.put("tasks", [f"conversations:{path}"], key)
                text = (
                    "each row is a sample, whose conversation is run with the recorded results; the user's later "
                    "messages follow, and calls that cannot be made get an error that says why"
                )
            else:
                self.put("rows", [path], key)
                text = "each answer in its rows is a sample; DeepFabric asks for the first one alone"
            self.note(key, text, is_change=True)
            return

    def map_turns(self) -> None:
        """Map the mode in which a sample is a whole conversation."""
        given, most = self.find("multi_turn"), self.find("max_turns")
        if not isinstance(given, bool | None):
            self.fail("multi_turn", f"it is {given!r}; give true or false")
        self._has_turns = given is True
        if self._has_turns:
            self.put(
                "agent.max_steps", 10 if most is None else most, "multi_turn" if most is None else "max_turns"
            )
            told = "; DeepFabric's default is 10" if most is None else ""
            self.note("multi_turn" if most is None else "max_turns", f"it is agent.max_steps here{told}")
        elif most is not None:
            self.note("max_turns", "left out; it is for multi_turn")

    def map_model(self) -> None:
        section = "inference_config"
        given: Any = self.find(section)
        key = "model" if self.find("model") is not None else f"{section}.model"
        name = self.find(key)
        sizes = [
            place
            for place in (f"{section}.batch_size", "batch_size", "evaluation.batch_size")
            if self.find(place) is not None
        ]
        if name is None:
            if sizes:
                self.put("window", self.find(sizes[0]), sizes[0])
                self.note(sizes[0], "it is window here: so many samples are always in flight")
            return
        given = given if isinstance(given, dict) else {}
        if key == "model" and given.get("model") not in (None, name):
            self.note(f"{section}.model", f"left out; the model is {name!r}", is_change=True)
        backend, options = given.get("backend", "transformers"), dict[str, Json]()
        provider = {"transformers": "hf", "ollama": "ollama", "llm": given.get("provider")}.get(str(backend))
        if provider is None:
            text = "give 'transformers', 'ollama', or 'llm' with a provider"
            self.fail(f"{section}.backend", text)
            return
        made: dict[str, Json] = {"model": f"{provider}:{name}"}
        for source, target in (
            ("temperature", "temperature"),
            ("top_p", "top_p"),
            ("max_tokens", "max_output_tokens"),
        ):
            made[target] = given.get(source, _KEYS["inference"][source])
            if source not in given:
                self.note(section, f"it has no {source}; {made[target]!r} is DeepFabric's default")
        if given.get("base_url") is not None:
            made["base_url"] = given["base_url"]
        if given.get("api_key") is not None:
            self.note(f"{section}.api_key", "left out; set the provider's variable, such as OPENAI_API_KEY")
        for source, target in (("adapter_path", "adapter"), ("device", "device")):
            if (value := given.get(source)) is None:
                continue
            if provider == "hf":
                options[target] = value
            else:
                self.note(f"{section}.{source}", f"left out; {provider!r} loads no weights here")
        if sizes:
            size = self.find(sizes[0])
            self.put("window", size, sizes[0])
            if provider == "hf":
                options["batch_size"] = size
            self.note(sizes[0], "it is window here, and the size of the model's batches")
        made |= {"options": options} if options else {}
        self.put("models", [made], key)
        self.note(key, f"it is models here: {made['model']!r}")

    def map_scorers(self) -> None:
        """Map the metrics and their weights."""
        found = self.find("evaluators")
        for name in found if isinstance(found, list | dict) else [] if found is None else [found]:
            if name != "tool_calling":
                hint = did_you_mean(str(name), ["tool_calling"], "the only one is 'tool_calling'")
                self.fail("evaluators", f"DeepFabric has no evaluator {name!r}{hint}")
        key = "evaluation.weights" if self.find("evaluation.weights") is not None else "metric_weights"
        given, weights = self.find(key), dict(_KEYS["weights"])
        if not isinstance(given, dict | None):
            self.fail(key, f"it is {given!r:.80}; write the weights as NAME: NUMBER")
        if isinstance(given, dict):
            if unknown := [name for name in given if name not in _METRICS]:
                text = f"left out: {', '.join(unknown)}; the weights are {', '.join(_METRICS)}"
                self.note(key, text, is_change=True)
            known = {name: weight for name, weight in given.items() if name in _METRICS}
            if any(known.values()):
                weights = {name: known.get(name, 0.0) for name in _METRICS}
            elif given:
                text = (
                    "no metric has a weight, so that DeepFabric's overall score is 0; its usual weights hold"
                )
                self.note(key, text, is_change=True)
        rewards: dict[str, Json] = {_METRICS[name]: {"weight": weight} for name, weight in weights.items()}
        wanted = self.find("evaluation.metrics")
        if wanted is not None and not (isinstance(wanted, list) and wanted):
            self.fail(
                "evaluation.metrics",
                f"it is {wanted!r:.80}; list one or more of {', '.join(_METRICS.values())}",
            )
        if isinstance(wanted, list) and wanted:
            if unknown := [str(name) for name in wanted if name not in _METRICS.values()]:
                hint = name_known(unknown[0], _METRICS.values(), "they are")
                self.fail("evaluation.metrics", f"there is no metric {unknown[0]!r}{hint}")
            rewards = {name: value for name, value in rewards.items() if name in wanted}
        for name in [*rewards]:
            if self._has_turns or name != "response_quality":  # which is else always 0
                rewards[f"deepfabric_{name}"] = {"scorer": name, "definition": "deepfabric", "weight": 0.0}
        if self._has_turns:
            rewards["calls_in_order"] = {"scorer": "calls", "ordered": True, "weight": 0.0}
        self.put("rewards", rewards, key)
        text = "scorers of these names compare values; those that begin with deepfabric_ give DeepFabric's figures"
        self.note(key if given is not None else "metric_weights", text, is_change=True)

    def map_reports(self) -> None:
        """Map the reporters and the output, which also names the folder."""
        output, reports = self.find("output_path"), list[str]()
        found = self.find("reporters")
        names = found if isinstance(found, list) and found else ["file"]
        reporters: dict[str, Any] = found if isinstance(found, dict) else {str(name): {} for name in names}
        for name, settings in reporters.items():
            if name in ("file", "json"):
                path = (settings.get("path") if isinstance(settings, dict) else None) or output
                reports += [f"deepfabric={path}"] if path else []
            elif name == "cloud":
                self.note("reporters", "left out: cloud; nothing is sent to DeepFabric's service")
            elif name != "console":
                self.fail(
                    "reporters", f"DeepFabric has no reporter {name!r}; its reporters are file and cloud"
                )
        folder = self.find("evaluation.output_dir")
        if output is not None:
            folder = str(PurePath(str(output)).with_suffix(""))
            self.put("path", folder, "output_path")
            self.note(
                "output_path",
                f"the runs are in the folder {folder!r}",
            )
        formats = self.find("evaluation.output_formats")
        for form in formats if isinstance(formats, list) else ():
            if form not in (known := _KEYS["lists"]["formats"].split()):
                hint = name_known(str(form), known, "they are")
                self.fail("evaluation.output_formats", f"there is no format {form!r}{hint}")
                continue
            reports.append(f"{form}={PurePath(str(folder or 'eval_results')) / f'report.{form}'}")
            self.note("evaluation.output_formats", f"{form!r} is the report {reports[-1]!r}")
        if reports:
            self.put(
                "reports", list(dict.fromkeys(reports)), "output_path" if output is not None else "reporters"
            )
