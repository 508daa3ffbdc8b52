"""Make docs/topics.png, the page of topics that the built-in teacher writes: `python docs/topics_picture.py`.

It needs Chromium.
"""

import asyncio
import subprocess
import tempfile
from pathlib import Path

from treadle import model, open_journal
from treadle.datagen.config.generation_config import Topics
from treadle.datagen.topics.building import build_topics
from treadle.datagen.topics.topics_view import make_topics_view
from treadle.tasks.draws import Draw
from treadle.viewer import write_page


def main() -> None:
    """Build a small graph offline, show it as if rows had been made for it, and take a picture of the page."""
    topics = build_topics(
        Topics(prompt="Office work with files", mode="graph", degree=5, depth=2),
        model=model("mock:teacher"),
        journal=open_journal("memory:"),
        seed=7,
        dataset="picture",
    )
    graph = asyncio.run(topics)
    draw = Draw("rows")
    counts = {leaf.topic_id: max(0, draw.between(-1, 8)) for leaf in graph.leaves()}
    with tempfile.TemporaryDirectory() as folder:
        page = write_page(make_topics_view(graph, counts), Path(folder) / "topics.html")
        out = Path(__file__).parent / "topics.png"
        size = ("--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1200,960")
        subprocess.run(
            ["chromium", *size, f"--screenshot={out}", "--virtual-time-budget=3000", page.as_uri()],
            check=True,
        )


if __name__ == "__main__":
    main()
