"""The configuration in the folder of a dataset: a copy of the one that the dataset is made with."""

from pathlib import Path

from treadle.datagen.config.load import load_config
from treadle.datagen.config.model import Config
from treadle.datagen.config.starter import dump
from treadle.datagen.dataset.folder import Folder
from treadle.export.whole import write_whole


def write_config(folder: Path, config: Config) -> None:
    """Write the configuration, without defaults. Texts that may be secret are not in it.

    Raises: `ConfigError` if no file can be made.
    """
    write_whole(dump(config).rstrip("\n").encode().split(b"\n"), Folder(folder).config)


def read_config(folder: Path) -> Config | None:
    """Return the configuration in the folder of a dataset; `None` if there is none, or if it is a file of rows.

    Raises: `ConfigError` if it cannot be read.
    """
    place = Folder(folder).config
    return load_config(place).config if folder.is_dir() and place.exists() else None
