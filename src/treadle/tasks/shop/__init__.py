"""The task set `shop`: customers of a shop's desk who want what may be allowed or not.

`desk` has the books, a SQLite database in the run's files, and the toolset `shop`. `shops` draws shops and grades
the final books. `requests` and `returns` have the templates, and `clerk` what their solvers share.
"""

from treadle.tasks.generated import GeneratedSet
from treadle.tasks.shop.desk import DATA, ShopDesk

TASK_SET = GeneratedSet(
    "shop", __name__, tools=("shop",), instructions=DATA["instructions"].strip(), has_user=True
)

__all__ = ["TASK_SET", "ShopDesk"]
