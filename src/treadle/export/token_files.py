"""Files of groups of rollouts: JSON lines or Parquet, in any token format."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from treadle.core.errors import ConfigError, ExportError
from treadle.export.files import PARQUET
from treadle.export.groups import Group
from treadle.export.parquet import read_parquet, require_arrow, write_table
from treadle.export.token_exporter import TOKEN_FORMATS, LossMask, encode_group, sampled_mask
from treadle.export.token_formats.native import FORMAT, read_groups
from treadle.export.whole import whole_file


@contextmanager
def open_group_writer(
    format: str, out: Path, mask: LossMask = sampled_mask
) -> Iterator[Callable[[Group], None]]:
    """Open a file for groups in a token format, and return the function that writes one.

    The file is a Parquet file if its name ends in `.parquet`, and one of JSON lines otherwise. It appears at the
    end of the block, or not at all if the block fails. The function writes nothing of a group that it refuses.

    Raises: `ConfigError` if `out` cannot be made or a package is missing; `ExportError` if it cannot be written.
    """
    token_format = TOKEN_FORMATS.load(format)
    is_parquet = out.suffix == PARQUET
    if is_parquet:
        require_arrow()
    lines = out.with_name(f"{out.name}.jsonl") if is_parquet else out
    with whole_file(lines) as file:

        def put(group: Group) -> None:
            file.write(encode_group(group, token_format, mask))

        yield put
    if is_parquet:
        write_table(lines, out, format, token_format.columns)
        lines.unlink()


def read_group_file(path: str | Path) -> Iterator[Group]:
    """Yield the groups in a file of the format `tokens`. Raises: `ConfigError`; `ExportError` if it is damaged."""
    path = Path(path)
    if path.suffix == PARQUET:
        yield from read_groups({**dict.fromkeys(FORMAT.columns), **row} for row in read_parquet(path))
        return
    try:
        with path.open("rb") as file:
            yield from read_groups(msgspec.json.decode(line) for line in file if line.strip())
    except OSError as error:
        raise ConfigError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ExportError(f"{str(path)!r} has a line that is not JSON: {error}") from error
