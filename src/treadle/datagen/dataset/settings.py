"""The configuration in the folder of a dataset: a copy of the one that the dataset is made with."""

from pathlib import Path

import yaml

from treadle.datagen.config.load import load_config
from treadle.datagen.config.model import Config
from treadle.datagen.dataset.folder import Folder
from treadle.export.whole import write_whole


def write_config(folder: Path, config: Config) -> None:
    """Write the configuration, with all of its settings. Keys of models are not part of a configuration.

    Raises: `ConfigError` if no file can be made.
    """
    raw = config.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True)
    write_whole(text.rstrip("\n").encode().split(b"\n"), Folder(folder).config)


def read_config(folder: Path) -> Config | None:
    """Return the configuration in the folder of a dataset; `None` if there is none, or if it is a file of rows.

    Raises: `ConfigError` if it cannot be read.
    """
    place = Folder(folder).config
    return load_config(place).config if folder.is_dir() and place.exists() else None
