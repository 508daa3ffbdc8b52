"""Shops that the tasks are drawn in, and the outcome that a task asks for."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from msgspec import Struct

from treadle.runs.task import Grade
from treadle.tasks.draws import Draw, split
from treadle.tasks.files.materials import CITIES, FIRST_NAMES, LAST_NAMES
from treadle.tasks.generated import GeneratedCase, Milestone
from treadle.tasks.shop.desk import BOOKS, DATA, TODAY, Books
from treadle.tasks.simulated_user import SimulatedUser

CHANGES_SHARE = 0.6
"""The share of the reward for rows that are as wanted, while others are not."""
COLLATERAL_COST = 0.25
"""The part of the reward that is lost for each row that should not be there."""
_SIZES = ((4, 8), (8, 14), (14, 24))
"""How many customers and products of each category the shops of each level have at most."""


CATEGORIES = split(DATA["categories"])
_PRODUCTS = {category: split(DATA[category]) for category in CATEGORIES}
_STREETS = split(DATA["streets"])


def day(days_ago: int) -> str:
    """Return the date so many days before the shop's today."""
    return (date.fromisoformat(TODAY) - timedelta(days_ago)).isoformat()


class ShopGoal(Struct, frozen=True):
    """The books that a task asks for."""

    wanted: Counter[tuple[object, ...]]

    def grade(self, output: str, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Grade:
        start, end = _read(before), _read(after)
        if end is None or start is None:
            return Grade(0.0, f"the books {BOOKS} are gone")
        if end == self.wanted:
            if not output.strip():
                return Grade(CHANGES_SHARE, "the books are right, and the customer was told nothing")
            return Grade(1.0, "the books are right")
        missing, wrong = self.wanted - end, (end - self.wanted) - start
        lost = (start - end) & self.wanted
        wanted = self.wanted - start
        share = 1 - (missing - lost).total() / wanted.total()
        reward = max(0.0, CHANGES_SHARE * share - COLLATERAL_COST * (wrong + lost).total())
        notes = [f"{_write(row)} is missing" for row in missing] + [
            f"{_write(row)} is wrong" for row in wrong
        ]
        left = (end - self.wanted) & start
        notes += [f"{_write(row)} should have been changed" for row in left]
        return Grade(round(reward, 4), "; ".join(notes[:6]))


def _read(files: Mapping[str, bytes]) -> Counter[tuple[object, ...]] | None:
    if BOOKS not in files:
        return None
    books = Books(files[BOOKS])
    try:
        return books.rows()
    finally:
        books.close()


def _write(row: tuple[object, ...]) -> str:
    return f"{row[0]}({', '.join(map(str, row[1:]))})"


class Product(Struct, frozen=True):
    """A product of the shop."""

    sku: str
    name: str
    category: str
    price_cents: int
    stock: int


class Customer(Struct, frozen=True):
    """A customer of the shop."""

    customer_id: int
    email: str
    postcode: str


class Shop:
    """A shop that is drawn for one task. Its first customer is the one who writes."""

    def __init__(self, draw: Draw, level: int) -> None:
        """Draw customers and products, and orders of other customers."""
        self.draw = draw
        self.level = level
        self.books = Books()
        most_customers, most_products = _SIZES[level]
        names = draw.sample(LAST_NAMES, draw.between(most_customers // 2, most_customers))
        self.customers = [self._add_customer(index, name) for index, name in enumerate(names)]
        self.customer = self.customers[0]
        self.products = [
            self._add_product(category, index, name)
            for category in CATEGORIES
            for index, name in enumerate(
                draw.sample(_PRODUCTS[category], min(len(_PRODUCTS[category]), most_products // 2))
            )
        ]
        self._next_order = draw.between(10_000, 80_000)
        self._add_orders()

    def _add_customer(self, index: int, last: str) -> Customer:
        draw = self.draw
        first = draw.pick(FIRST_NAMES)
        email = f"{first}.{last}{draw.between(1, 99)}@mail.example".lower()
        made = Customer(1001 + 7 * index, email, f"{draw.between(10_000, 99_999)}")
        self.books.add(
            "customers",
            customer_id=made.customer_id,
            name=f"{first} {last}",
            email=email,
            postcode=made.postcode,
            address=self.address(made.postcode),
        )
        return made

    def address(self, postcode: str) -> str:
        draw = self.draw
        return f"{draw.between(1, 180)} {draw.pick(_STREETS)}, {postcode} {draw.pick(CITIES)}"

    def _add_product(self, category: str, index: int, name: str) -> Product:
        draw = self.draw
        sku = f"{category[:2].upper()}-{draw.between(10, 99)}{index:02d}"
        made = Product(sku, name, category, draw.between(150, 19_999), draw.between(6, 60))
        self.books.add(
            "products",
            sku=sku,
            name=name,
            category=category,
            price_cents=made.price_cents,
            stock=made.stock,
        )
        return made

    def _add_orders(self) -> None:
        for customer in self.customers[1:]:
            for _ in range(self.draw.below(3)):
                lines = {product: self.draw.between(1, 4) for product in self.draw.sample(self.products, 2)}
                self.add_order(customer, lines, self.draw.pick(("pending", "shipped", "delivered")))

    def pick(self, *categories: str, without: Sequence[Product] = ()) -> Product:
        """Return a product of one of `categories`; without any, of those that can be returned."""
        wanted = categories or ("garden", "kitchen", "tools")
        fitting = [item for item in self.products if item.category in wanted and item not in without]
        return self.draw.pick(fitting)

    def set_stock(self, product: Product, stock: int) -> None:
        """Change how many of a product there are."""
        self.books.change("UPDATE products SET stock = ? WHERE sku = ?", stock, product.sku)

    def add_order(
        self, customer: Customer, lines: Mapping[Product, int], status: str, days_ago: int | None = None
    ) -> int:
        """Add an order, and return its number. It was delivered, or else placed, `days_ago`, or it is drawn."""
        draw = self.draw
        self._next_order += draw.between(1, 40)
        is_delivered = status == "delivered"
        if days_ago is None:
            days_ago = draw.between(3, 200) if is_delivered else draw.between(0, 4)
        address = self.books.find("SELECT address FROM customers WHERE customer_id = ?", customer.customer_id)
        order_id, total = self._next_order, 0
        self.books.add(
            "orders",
            order_id=order_id,
            customer_id=customer.customer_id,
            status=status,
            placed_on=day(days_ago + (draw.between(2, 6) if is_delivered else 0)),
            delivered_on=day(days_ago) if is_delivered else None,
            address=address[0]["address"],
        )
        for product, count in lines.items():
            # The price at that time; the price of today may differ.
            price = product.price_cents - draw.below(2) * draw.between(1, product.price_cents // 4)
            total += count * price
            self.books.add(
                "order_lines", order_id=order_id, sku=product.sku, count=count, price_cents=price, returned=0
            )
        self.books.add("payments", order_id=order_id, kind="charge", cents=total)
        return order_id

    def price_paid(self, order_id: int, product: Product) -> int:
        """Return what one item of a product in an order was sold for, in cents."""
        lines = self.books.order(order_id)["lines"]
        return int(next(line["price_cents"] for line in lines if line["sku"] == product.sku))

    def introduce(self, values: dict[str, str]) -> dict[str, str]:
        """Return the values of a prompt. Customers of the level `easy` say who they are at once."""
        known = {"email": self.customer.email, "postcode": self.customer.postcode}
        return {**values, **known} if self.level == 0 else values

    def case(
        self,
        values: dict[str, str],
        actions: Sequence[tuple[str, dict[str, Any]]],
        *,
        refused: str | None = None,
        pushes: Sequence[str] = (),
        agrees: bool = True,
        facts: Mapping[str, str] = {},
    ) -> GeneratedCase:
        """Return the case in which `actions`, names of tools with their arguments, are right.

        `refused` is the rule that forbids what the customer wants, if one does. The customer knows `facts` besides
        the e-mail address and the postcode.
        """
        self._add_orders()
        before = self.books.write()
        outcome = {"outcome": "done" if refused is None else "refused", "rule": refused or "none"}
        wanted = [*actions, ("record_outcome", outcome)]
        for name, arguments in wanted:
            getattr(self.books, name)(**arguments)
        goal = ShopGoal(self.books.rows())
        self.books.close()
        known = {"email": self.customer.email, "postcode": self.customer.postcode, **facts}
        email = values.get("email", known["email"])
        milestones = [Milestone("find_customer", {"email": email})]
        milestones += [Milestone(name, arguments) for name, arguments in wanted]
        shape = [(name, given.get("rule"), len(given.get("lines", ()))) for name, given in wanted]
        user = SimulatedUser(facts=known, pushes=tuple(pushes), agrees=agrees)
        return GeneratedCase(values, {BOOKS: before}, goal, tuple(shape), tuple(milestones), user)
