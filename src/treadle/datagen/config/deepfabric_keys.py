"""The keys of DeepFabric's configuration files: their names in Treadle, and what to use in place of other keys.

Source: DeepFabric 4.0 to 4.13, `DeepFabricConfig`; before 4.0, `topic_tree`, `data_engine` and `dataset`.
"""

RENAMED = {
    "topics.prompt": ("topics.prompt", ""),
    "topics.system_prompt": ("topics.instructions", ""),
    "topics.depth": ("topics.depth", ""),
    "topics.degree": ("topics.degree", ""),
    "topics.max_concurrent": ("topics.window", ""),
    "generation.tools.max_per_query": (
        "tools.max_calls",
        "the agent is told the limit, and calls above it are not run",
    ),
    "generation.output_schema": ("generation.conversation.output_schema", ""),
    "output.include_system_message": ("output.include_system_message", ""),
    "output.num_samples": (
        "generation.num_samples",
        "it is the number of rows, which DeepFabric before 4.10 multiplied by batch_size",
    ),
    "output.batch_size": (
        "generation.window",
        "samples are not made in batches; this many samples are always in flight",
    ),
    "huggingface.repository": ("publish.huggingface.repository", ""),
    "huggingface.tags": ("publish.huggingface.tags", ""),
    "kaggle.handle": ("publish.kaggle.handle", ""),
    "kaggle.tags": ("publish.kaggle.tags", ""),
    "kaggle.description": ("publish.kaggle.description", ""),
    "kaggle.version_notes": ("publish.kaggle.version_notes", ""),
}
"""Keys that have another name in Treadle, with a remark if the meaning differs."""

LEFT_OUT = {
    "topics.save_as": "the topics are in topics.json of the dataset's folder; `treadle topics` converts the file",
    "generation.tools.strict": "no sample is discarded or truncated afterwards: tools.max_calls is enforced when a "
    "call is made",
    "generation.tools.min_tool_calls": "say with generation.kinds how often each kind of tool use is wanted",
    "generation.conversation.min_tool_calls": "say with generation.kinds how often each kind of tool use is wanted",
    "generation.max_retries": "failed requests are repeated up to max_attempts of the model, and further samples "
    "replace rejected ones up to generation.max_attempts",
    "generation.save_as": "rows are written to the folder output.path as soon as they are counted",
    "generation.rate_limit": "retries wait as long as the server says, or longer each time; limits of a server are "
    "in treadle.toml, and models.default.limit names them",
    "output.checkpoint": "every row is stored when it is counted: the same command continues, and --retry-failed "
    "tries failed samples again",
    "evaluation": "it has no effect on a generation",
    "deepfabric_cloud": "datasets are published with `treadle publish`; name the place with publish.huggingface or "
    "publish.kaggle",
}
"""Keys that Treadle does not have, with what to use instead."""

SPECIAL = (
    *(
        f"{section}llm.{key}"
        for section in ("", "topics.", "generation.")
        for key in ("provider", "model", "temperature", "base_url")
    ),
    "topics.mode",
    "topics.prompt_style",
    "topics.max_tokens",
    "generation.system_prompt",
    "generation.instructions",
    "generation.max_tokens",
    "generation.sample_retries",
    "generation.conversation.type",
    "generation.conversation.reasoning_style",
    "generation.conversation.agent_mode",
    "generation.conversation.min_turns",
    "generation.conversation.max_turns",
    "generation.tools.spin_endpoint",
    "generation.tools.components",
    "generation.tools.available",
    "generation.tools.tools_endpoint",
    "generation.tools.custom",
    "generation.tools.tool_execute_path",
    "generation.tools.scenario_seed",
    "generation.tools.max_agent_steps",
    "output.system_prompt",
    "output.save_as",
    "output.format",
    "output.formatters",
)
"""Keys that are mapped by code."""

MISPLACED = {
    "generation.scenario_seed": "generation.tools.scenario_seed",
    "generation.tools.max_retries": "generation.max_retries",
    "generation.tools.sample_retries": "generation.sample_retries",
    "generation.tools.max_tokens": "generation.max_tokens",
}
"""Keys that DeepFabric's own examples have in the wrong section, where DeepFabric ignores them."""

OLD = {
    "dataset_system_prompt": "output.system_prompt",
    "system_prompt": "output.system_prompt",
    "topic_generator": "topics.mode",
    "topic_tree": "topics with mode: tree; topic_prompt is prompt, topic_system_prompt is system_prompt",
    "topic_graph": "topics with mode: graph; topic_prompt is prompt, topic_system_prompt is system_prompt",
    "data_engine": "generation; generation_system_prompt is system_prompt, conversation_type and reasoning_style "
    "are in conversation, available_tools is tools.available, custom_tools is tools.custom",
    "dataset": "output; creation.num_steps is num_samples, creation.batch_size is batch_size, creation.sys_msg is "
    "include_system_message, save_as is save_as",
}
"""The sections of files from before DeepFabric 4, with their names in DeepFabric 4."""

FORMATTERS = {
    "trl_sft_tools": "trl",
    "conversations": "sharegpt",
    "openai": "openai",
    "openai_schema": "openai",
}
"""Treadle's row formats, by the names of DeepFabric's formatters."""

KNOWN = frozenset((*RENAMED, *LEFT_OUT, *SPECIAL))


def is_deepfabric(value: dict[str, object]) -> bool:
    """Return whether a configuration has keys of DeepFabric, and no section that only Treadle has."""
    if value.keys() & {"models", "tools", "quality", "limits", "publish", "name", "seed"}:
        return False
    if value.keys() & {"llm", "huggingface", "kaggle", "evaluation", "deepfabric_cloud", *OLD}:
        return True
    return any(
        isinstance(section := value.get(name), dict) and not section.keys().isdisjoint(keys)
        for name, keys in _MARKS.items()
    )


_MARKS = {
    "topics": ("llm", "system_prompt", "save_as", "max_concurrent", "prompt_style"),
    "generation": ("llm", "system_prompt", "tools", "sample_retries", "max_retries"),
    "output": ("save_as", "system_prompt", "batch_size"),
}
"""Keys that only DeepFabric has in these sections."""
