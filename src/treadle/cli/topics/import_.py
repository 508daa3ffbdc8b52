"""`treadle topics import`: converts files of topics from one format to another."""

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.topics.files import File, Format, read, refuse_existing, write
from treadle.datagen.topics.topic_files import TopicFormat

EXAMPLES = (
    "treadle topics import topic_tree.jsonl -o topics.json",
    "treadle topics import topics.json --format deepfabric-graph -o graph.json",
)


def import_topics(
    file: File, out: o.Out = None, format: Format = TopicFormat.TREADLE, is_forced: o.IsForced = False
) -> int:
    """Read topics and write them in another format.

    The format of FILE is recognised. Data that the new format cannot hold is listed.
    """
    refuse_existing(out, is_forced=is_forced)
    write(read(file), out, format)
    return ExitCode.DONE
