"""The shop's books, a SQLite database in the files of a run, and the tools that work on them.

The tools keep the books consistent. That the rules of the desk are kept is up to the agent.
"""

import inspect
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from treadle.core.errors import ToolError
from treadle.core.spec import PartSpec
from treadle.core.texts.documents import read_data
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import tool
from treadle.tools.protocol import Tool

DATA = read_data(__package__, "shop")
BOOKS = "shop.db"
"""The path of the database in the files of a run."""
TODAY: str = DATA["today"]

Rule: TypeAlias = Literal[
    "none", "identity", "shipped", "return_window", "final_sale", "damaged", "stock", "no_discount"
]
Count: TypeAlias = Annotated[int, Field(ge=1, le=1000)]


@with_config(ConfigDict(extra="ignore"))
class OrderLine(TypedDict):
    """A product in a new order."""

    sku: str
    count: Count


class Books:
    """The shop's books in memory. Close them after use. The methods from `find_customer` on are tools too; they
    raise `ToolError`, and return what the model reads."""

    def __init__(self, content: bytes | None = None) -> None:
        """Open a database, or make an empty one. Raises: `ToolError` if `content` is no database of a shop."""
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        try:
            if content is None:
                self._connection.executescript(DATA["schema"])
            else:
                self._connection.deserialize(content)
                self.find("SELECT count(*) FROM orders")
        except sqlite3.Error as error:
            raise ToolError(f"the books {BOOKS!r} cannot be read: {error}") from error

    def close(self) -> None:
        """Close the database. It can be called again."""
        self._connection.close()

    def write(self) -> bytes:
        return self._connection.serialize()

    def find(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        return [dict(row) for row in self._connection.execute(query, values)]

    def change(self, statement: str, *values: object) -> None:
        """Run a statement that changes rows."""
        self._connection.execute(statement, values)

    def add(self, table: str, **values: object) -> None:
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.change(f"INSERT INTO {table} ({names}) VALUES ({marks})", *values.values())

    def rows(self) -> Counter[tuple[object, ...]]:
        """Return all rows with their tables. The numbers of payments are left out, because they tell only the
        order in which payments were made."""
        found: Counter[tuple[object, ...]] = Counter()
        for table in ("customers", "products", "orders", "order_lines", "payments", "outcomes"):
            for row in self.find(f"SELECT * FROM {table}"):
                row.pop("payment_id", None)
                found[(table, *row.values())] += 1
        return found

    def order(self, order_id: int) -> dict[str, Any]:
        """Return an order with its lines and payments. Raises: `ToolError` if there is none."""
        found = self.find("SELECT * FROM orders WHERE order_id = ?", order_id)
        if not found:
            raise ToolError(f"there is no order {order_id}; list_orders shows those of a customer")
        lines = self.find(
            "SELECT sku, name, category, count, order_lines.price_cents, returned FROM order_lines "
            "JOIN products USING (sku) WHERE order_id = ? ORDER BY sku",
            order_id,
        )
        payments = self.find(
            "SELECT kind, cents FROM payments WHERE order_id = ? ORDER BY payment_id", order_id
        )
        return {**found[0], "lines": lines, "payments": payments}

    def _take(self, sku: str, count: int) -> int:
        """Take items out of the stock, and return the price of one."""
        found = self.find("SELECT price_cents, stock FROM products WHERE sku = ?", sku)
        if not found:
            raise ToolError(f"there is no product {sku!r}; search_products finds products by their names")
        if found[0]["stock"] < count:
            raise ToolError(f"only {found[0]['stock']} of {sku!r} are in stock")
        self.change("UPDATE products SET stock = stock - ? WHERE sku = ?", count, sku)
        price: int = found[0]["price_cents"]
        return price

    def find_customer(self, email: str) -> dict[str, Any]:
        """Find the customer with an e-mail address.

        Args:
            email: The whole address.
        """
        found = self.find("SELECT * FROM customers WHERE email = ?", email.strip().lower())
        if not found:
            raise ToolError(f"no customer has the e-mail address {email!r}")
        return found[0]

    def list_orders(self, customer_id: int) -> list[dict[str, Any]]:
        """List the orders of a customer, as a JSON array.

        Args:
            customer_id: The number of the customer, from find_customer.
        """
        return self.find("SELECT * FROM orders WHERE customer_id = ? ORDER BY order_id", customer_id)

    def read_order(self, order_id: int) -> dict[str, Any]:
        """Read an order, with its lines, their prices and the payments.

        Args:
            order_id: The number of the order.
        """
        return self.order(order_id)

    def search_products(self, text: str) -> list[dict[str, Any]]:
        """Find products whose names contain a text, with their prices and stock.

        Args:
            text: A part of the name.
        """
        query = "SELECT * FROM products WHERE instr(lower(name), lower(?)) ORDER BY sku"
        return self.find(query, text.strip())

    def place_order(self, customer_id: int, lines: Annotated[list[OrderLine], Field(min_length=1)]) -> str:
        """Place an order for a customer. It is sent to the customer's address and charged at once.

        Args:
            customer_id: The number of the customer.
            lines: The products and how many of each.
        """
        customer = self.find("SELECT address FROM customers WHERE customer_id = ?", customer_id)
        if not customer:
            raise ToolError(f"there is no customer {customer_id}")
        wanted = Counter[str]()
        for line in lines:
            wanted[line["sku"]] += line["count"]
        prices = {sku: self._take(sku, count) for sku, count in wanted.items()}
        newest = self.find("SELECT max(order_id) AS newest FROM orders")[0]["newest"]
        order_id: int = 10_000 if newest is None else newest + 1
        self.add(
            "orders",
            order_id=order_id,
            customer_id=customer_id,
            status="pending",
            placed_on=TODAY,
            address=customer[0]["address"],
        )
        for sku, count in wanted.items():
            self.add(
                "order_lines", order_id=order_id, sku=sku, count=count, price_cents=prices[sku], returned=0
            )
        total = sum([count * prices[sku] for sku, count in wanted.items()])
        self.add("payments", order_id=order_id, kind="charge", cents=total)
        return f"placed order {order_id}"

    def cancel_order(self, order_id: int) -> str:
        """Cancel a whole order. Its price is refunded.

        Args:
            order_id: The number of the order.
        """
        order = self.order(order_id)
        if order["status"] == "cancelled":
            raise ToolError(f"the order {order_id} is cancelled already")
        self.change("UPDATE orders SET status = 'cancelled' WHERE order_id = ?", order_id)
        for line in order["lines"]:
            self.change("UPDATE products SET stock = stock + ? WHERE sku = ?", line["count"], line["sku"])
        total = sum([line["count"] * line["price_cents"] for line in order["lines"]])
        self.add("payments", order_id=order_id, kind="refund", cents=total)
        return f"cancelled order {order_id} and refunded {total} cents"

    def change_address(self, order_id: int, address: str) -> str:
        """Change the address that an order is sent to.

        Args:
            order_id: The number of the order.
            address: The whole new address.
        """
        self.order(order_id)
        self.change("UPDATE orders SET address = ? WHERE order_id = ?", address, order_id)
        return f"order {order_id} is sent to {address}"

    def return_items(self, order_id: int, sku: str, count: Count) -> str:
        """Accept items of an order back. This refunds nothing.

        Args:
            order_id: The number of the order.
            sku: The product.
            count: How many of it.
        """
        line = next((item for item in self.order(order_id)["lines"] if item["sku"] == sku), None)
        if line is None:
            raise ToolError(f"the order {order_id} has no product {sku!r}")
        if line["returned"] + count > line["count"]:
            raise ToolError(f"only {line['count'] - line['returned']} of {sku!r} can come back")
        statement = "UPDATE order_lines SET returned = returned + ? WHERE order_id = ? AND sku = ?"
        self.change(statement, count, order_id, sku)
        return f"{count} of {sku} from order {order_id} come back"

    def refund(self, order_id: int, cents: Annotated[int, Field(ge=1)]) -> str:
        """Pay money for an order back to the customer.

        Args:
            order_id: The number of the order.
            cents: The amount.
        """
        self.order(order_id)
        self.add("payments", order_id=order_id, kind="refund", cents=cents)
        return f"refunded {cents} cents for order {order_id}"

    def record_outcome(self, outcome: Literal["done", "refused"], rule: Rule) -> str:
        """Record how the customer's matter ended.

        Args:
            outcome: Whether it was done or refused.
            rule: The rule that forbids it; none if it was done.
        """
        # A later outcome replaces an earlier one.
        self.change("INSERT OR REPLACE INTO outcomes VALUES (1, ?, ?)", outcome, rule)
        return f"recorded: {outcome}, {rule}"


def _to_tool(method: Callable[..., Any], *, is_change: bool) -> Tool:
    """Return the tool that calls a method of the books of its run."""

    async def call(context: ToolContext, **arguments: Any) -> Any:
        if context.sandbox is None or BOOKS not in context.sandbox.paths():
            raise ToolError(
                f"this run has no file {BOOKS!r}; the tools of the shop need a task of the set 'shop'"
            )
        with closing(Books(context.sandbox.read(BOOKS))) as books:
            told = method(books, **arguments)
            if is_change:
                context.sandbox.write(BOOKS, books.write())
        return told

    made: Any = call
    made.__name__, made.__doc__, signature = method.__name__, method.__doc__, inspect.signature(method)
    (_, *given), (context, _) = signature.parameters.values(), inspect.signature(call).parameters.values()
    made.__signature__ = signature.replace(parameters=[context, *given])
    return tool(made, effect="idempotent", concurrent=False) if is_change else tool(made, effect="pure")


_READING = (Books.find_customer, Books.list_orders, Books.read_order, Books.search_products)
_CHANGING = (
    Books.place_order,
    Books.cancel_order,
    Books.change_address,
    Books.return_items,
    Books.refund,
    Books.record_outcome,
)
_TOOLS = (
    *[_to_tool(method, is_change=False) for method in _READING],
    *[_to_tool(method, is_change=True) for method in _CHANGING],
)


class ShopDesk:
    """The toolset `shop`. See `Toolset`."""

    part = PartSpec(name="shop")

    def tools(self) -> Sequence[Tool]:
        return _TOOLS
