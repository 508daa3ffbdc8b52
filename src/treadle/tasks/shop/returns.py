"""Templates about goods that were delivered."""

from collections.abc import Mapping
from datetime import date
from typing import Any

from treadle.tasks.draws import Draw
from treadle.tasks.generated import GeneratedCase
from treadle.tasks.shop import clerk
from treadle.tasks.shop.desk import TODAY
from treadle.tasks.shop.requests import PUSHES
from treadle.tasks.shop.shops import Product, Shop
from treadle.tasks.solver import Ask, Habit, Solver, Step

RETURN_DAYS = 30


class _Delivered:
    """A delivered order of which the customer brings up one product."""

    def __init__(self, shop: Shop, *categories: str, late_chance: float = 0.0) -> None:
        draw = shop.draw
        self.product: Product = shop.pick(*categories)
        self.count = draw.between(1, 3)
        self.is_late = shop.level > 0 and draw.chance(late_chance)
        days_ago = draw.between(31, 90) if self.is_late else draw.between(1, 30)
        other = shop.pick(without=[self.product])
        if shop.level == 2:
            # Only the newest of the orders with this product is meant.
            shop.add_order(shop.customer, {self.product: 4}, "delivered", 150)
            shop.add_order(shop.customer, {other: 1}, "delivered", 3)
        bought = self.count + draw.below(2)
        self.order_id = shop.add_order(shop.customer, {self.product: bought, other: 2}, "delivered", days_ago)
        self.paid = self.count * shop.price_paid(self.order_id, self.product)
        self.values = {"product": self.product.name, "count": str(self.count)}
        if shop.level < 2:
            self.values["order"] = str(self.order_id)

    def returned(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the actions that take the items back."""
        line = {"order_id": self.order_id, "sku": self.product.sku, "count": self.count}
        return [("return_items", line), ("refund", {"order_id": self.order_id, "cents": self.paid})]


def _days_since(delivered_on: str) -> int:
    return (date.fromisoformat(TODAY) - date.fromisoformat(delivered_on)).days


def _find_delivered(values: Mapping[str, str], habit: Habit) -> clerk.Asking:
    """Return the customer, the order and its line; a text instead of the order if the matter is refused."""
    customer = yield from clerk.identify(values)
    if customer is None:
        return None, (yield from clerk.refuse("identity")), None
    if "order" in values:
        order = yield from clerk.find_order(values, customer, habit, lambda order: True)
    else:
        orders: list[clerk.Order] = yield from clerk.read_orders(customer, habit)
        fitting = [item for item in orders if clerk.line_of(item, values["product"]) and item["delivered_on"]]
        order = max(fitting, key=lambda item: item["delivered_on"], default=None)
    line = None if order is None else clerk.line_of(order, values["product"])
    if order is None or line is None:
        return customer, (yield from clerk.refuse("identity")), None
    if line["category"] == "hygiene":
        return customer, (yield from clerk.refuse("final_sale", product=values["product"])), line
    if order["delivered_on"] is None or _days_since(order["delivered_on"]) > RETURN_DAYS:
        return customer, (yield from clerk.refuse("return_window", delivered=order["delivered_on"])), line
    return customer, order, line


def _take_back(order: clerk.Order, line: dict[str, Any], count: int) -> clerk.Asking:
    """Return the items, and then refund their price, which is returned."""
    sku, before = line["sku"], line["returned"]

    def is_noted(now: clerk.Order) -> bool:
        return any([item["sku"] == sku and item["returned"] > before for item in now["lines"]])

    made = clerk.change_order("return_items", is_noted, order_id=order["order_id"], sku=sku, count=count)
    yield Step([made], "It is within 30 days, so it can come back.")
    cents = count * line["price_cents"]
    yield Step([clerk.refund(order, cents)], "Now the price that was paid for it.")
    return cents


def generate_give_back(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer who wants to return goods, perhaps too late."""
    shop = Shop(draw, level)
    bought = _Delivered(shop, late_chance=0.4)
    refused = "return_window" if bought.is_late else None
    actions = [] if refused else bought.returned()
    pushes = draw.sample(PUSHES, draw.between(1, 2)) if refused else ()
    return shop.case(shop.introduce(bought.values), actions, refused=refused, pushes=pushes)


def solve_give_back(values: Mapping[str, str], habit: Habit) -> Solver:
    """Find the order, and take the items back if it is not too late."""
    _, order, line = yield from _find_delivered(values, habit)
    if isinstance(order, str):
        return order
    cents = yield from _take_back(order, line, int(values["count"]))
    return (yield from clerk.finish(habit, f"You can send it back; you get {cents / 100:.2f} back."))


def generate_exchange(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer who wants something else instead."""
    shop = Shop(draw, level)
    bought = _Delivered(shop)
    other = shop.pick(without=[bought.product])
    line = {"sku": other.sku, "count": bought.count}
    order = ("place_order", {"customer_id": shop.customer.customer_id, "lines": [line]})
    values = shop.introduce({**bought.values, "other": other.name})
    return shop.case(values, [*bought.returned(), order])


def solve_exchange(values: Mapping[str, str], habit: Habit) -> Solver:
    """Take the items back, refund them, and order the others."""
    customer, order, line = yield from _find_delivered(values, habit)
    if isinstance(order, str):
        return order
    count, name = int(values["count"]), values["other"]
    product = yield from clerk.find_product(name)
    orders = yield from clerk.list_orders(customer)
    yield from _take_back(order, line, count)
    yield Step([clerk.place_order(customer, {product["sku"]: count}, len(orders))], "And the new order.")
    return (
        yield from clerk.finish(habit, f"{count} of the {name} are ordered, and the old ones are refunded.")
    )


def generate_damaged(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer whose goods arrived damaged and who wants all the money back."""
    shop = Shop(draw, level)
    bought = _Delivered(shop)
    cents = bought.paid * 15 // 100
    return shop.case(
        shop.introduce(bought.values), [("refund", {"order_id": bought.order_id, "cents": cents})]
    )


def solve_damaged(values: Mapping[str, str], habit: Habit) -> Solver:
    """Refund 15 % of the price of the damaged items."""
    _, order, line = yield from _find_delivered(values, habit)
    if isinstance(order, str):
        return order
    cents = int(values["count"]) * line["price_cents"] * 15 // 100
    yield Step([clerk.refund(order, cents)], "For damaged goods the rule is 15 % of the price.")
    return (
        yield from clerk.finish(habit, f"Please keep them; you get {cents / 100:.2f} back for the damage.")
    )


def generate_hygiene(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer who wants to return what cannot be returned."""
    shop = Shop(draw, level)
    bought = _Delivered(shop, "hygiene")
    pushes = draw.sample(PUSHES, draw.between(1, 2))
    return shop.case(shop.introduce(bought.values), [], refused="final_sale", pushes=pushes)


solve_hygiene = solve_give_back


def generate_haggle(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer who buys two things only at a discount, or says so."""
    shop = Shop(draw, level)
    product, count, agrees = shop.pick(), draw.between(1, 4), draw.chance(0.6)
    other = shop.pick(without=[product])
    lines = [{"sku": product.sku, "count": count}, {"sku": other.sku, "count": 1}]
    order = ("place_order", {"customer_id": shop.customer.customer_id, "lines": lines})
    percent = str(draw.pick((5, 10, 15, 20, 25)))
    values = {"product": product.name, "other": other.name, "count": str(count), "percent": percent}
    return shop.case(
        shop.introduce(values),
        [order] if agrees else [],
        refused=None if agrees else "no_discount",
        agrees=agrees,
        pushes=draw.sample(PUSHES, draw.between(0, level)),
    )


def solve_haggle(values: Mapping[str, str], habit: Habit) -> Solver:
    """Say that prices are fixed, and order at the full price if the customer agrees."""
    customer = yield from clerk.identify(values)
    if customer is None:
        return (yield from clerk.refuse("identity"))
    count, names = (
        int(values["count"]),
        f"{values['count']} of the {values['product']} and one {values['other']}",
    )
    product = yield from clerk.find_product(values["product"])
    other = yield from clerk.find_product(values["other"])
    price = f"{(count * product['price_cents'] + other['price_cents']) / 100:.2f}"
    agreed = None
    for _ in range(4):
        if agreed is None:
            (reply,) = yield Ask(f"I cannot give a discount. Shall I order {names} for {price}?")
            agreed = clerk.has_agreed(reply)
    if not agreed:
        return (yield from clerk.refuse("no_discount"))
    orders = yield from clerk.list_orders(customer)
    made = clerk.place_order(customer, {product["sku"]: count, other["sku"]: 1}, len(orders))
    yield Step([made], "The full price is agreed.")
    return (yield from clerk.finish(habit, f"I have ordered {names} for {price}."))
