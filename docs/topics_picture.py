"""Draw docs/topics.svg, a picture of topics that the built-in teacher writes: `python docs/topics_picture.py`."""

import asyncio
from pathlib import Path

from treadle import model, open_journal
from treadle.datagen.config.generation_config import Topics
from treadle.datagen.topics.building import build_topics
from treadle.datagen.topics.draw import draw_svg
from treadle.tasks.draws import Draw


async def main() -> None:
    """Build a small graph offline, and draw it as if rows had been made for it."""
    graph = await build_topics(
        Topics(prompt="Office work with files", mode="graph", degree=5, depth=2),
        model=model("mock:teacher"),
        journal=open_journal("memory:"),
        seed=7,
        dataset="picture",
    )
    draw = Draw("rows")
    counts = {leaf.topic_id: max(0, draw.between(-1, 8)) for leaf in graph.leaves()}
    (Path(__file__).parent / "topics.svg").write_text(draw_svg(graph, counts))


if __name__ == "__main__":
    asyncio.run(main())
