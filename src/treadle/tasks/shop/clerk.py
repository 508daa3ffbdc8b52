"""The calls of the toolset `shop`, and steps that several solvers share."""

import json
import re
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from treadle.tasks.draws import pick
from treadle.tasks.shop.desk import DATA
from treadle.tasks.solver import Ask, FailedResult, Habit, Solver, Step, WantedCall

TEXTS = DATA["clerk"]
Order: TypeAlias = dict[str, Any]
Customer: TypeAlias = dict[str, Any]
Asking: TypeAlias = Generator[Step | Ask, list[str], Any]
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_POSTCODE = re.compile(r"\b\d{5}\b")


def call(name: str, **arguments: Any) -> WantedCall:
    """Return a call that changes nothing."""
    return WantedCall(name, arguments)


def change_order(name: str, is_done: Callable[[Order], bool], **arguments: Any) -> WantedCall:
    """Return a call that changes the order `order_id`. `is_done` says whether the order shows the change."""
    look = call("read_order", order_id=arguments["order_id"])
    return WantedCall(name, arguments, look=look, is_done=lambda text: is_done(json.loads(text)))


def place_order(customer: Customer, counts: Mapping[str, int], known: int) -> WantedCall:
    """Return a call that orders products, with the count of each, for a customer who has `known` orders."""
    lines = [{"sku": sku, "count": count} for sku, count in counts.items()]
    arguments: dict[str, Any] = {"customer_id": customer["customer_id"], "lines": lines}
    look = call("list_orders", customer_id=customer["customer_id"])
    return WantedCall("place_order", arguments, look=look, is_done=lambda text: len(json.loads(text)) > known)


def refund(order: Order, cents: int) -> WantedCall:
    """Return a call that refunds an amount for an order."""
    known = len(order["payments"])
    return change_order(
        "refund", lambda now: len(now["payments"]) > known, order_id=order["order_id"], cents=cents
    )


def record(outcome: str, rule: str) -> Step:
    """Return the step that records the outcome. It can be made again."""
    return Step([call("record_outcome", outcome=outcome, rule=rule)], pick(TEXTS["recording"], rule))


def finish(habit: Habit, text: str) -> Solver:
    """Record that the matter is done, and return what the customer is told."""
    yield record("done", "none")
    return text if habit.is_terse else f"{text} {pick(TEXTS['done'], text)}"


def refuse(rule: str, **values: object) -> Solver:
    """Record that the matter is refused, tell the customer, and return what is said to one who insists."""
    yield record("refused", rule)
    yield Ask(TEXTS["refusals"][rule].format(**values))
    return str(TEXTS["again"])


def identify(values: Mapping[str, str]) -> Asking:
    """Return the customer, after asking for what the prompt does not say; `None` if the customer is not known."""
    email, postcode = values.get("email"), values.get("postcode")
    if email is None or postcode is None:
        (reply,) = yield Ask(pick(TEXTS["introduction"], *sorted(values.items())))
        email, postcode = _first(_EMAIL, reply), _first(_POSTCODE, reply.replace(_first(_EMAIL, reply), ""))
    (found,) = yield Step([call("find_customer", email=email)], TEXTS["looking"], may_fail=True)
    if isinstance(found, FailedResult):
        return None
    customer = json.loads(found)
    return customer if customer["postcode"] == postcode else None


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[0] if found else ""


def list_orders(customer: Customer) -> Asking:
    """Return the numbers of the orders of a customer."""
    (listed,) = yield Step([call("list_orders", customer_id=customer["customer_id"])], TEXTS["listing"])
    return [order["order_id"] for order in json.loads(listed)]


def read_orders(customer: Customer, habit: Habit) -> Asking:
    """Return the orders of a customer, with their lines."""
    ids = yield from list_orders(customer)
    orders: list[Order] = []
    for start in range(0, len(ids), habit.batch):
        calls = [call("read_order", order_id=order_id) for order_id in ids[start : start + habit.batch]]
        orders += map(json.loads, (yield Step(calls, TEXTS["reading"])))
    return orders


def find_order(
    values: Mapping[str, str], customer: Customer, habit: Habit, is_wanted: Callable[[Order], bool]
) -> Asking:
    """Return the order that the customer speaks of; `None` if it is not the customer's.

    It is named by its number, or it is the one with the product for which `is_wanted` is true.
    """
    if "order" in values:
        (text,) = yield Step([call("read_order", order_id=int(values["order"]))], TEXTS["reading"])
        order = json.loads(text)
        return order if order["customer_id"] == customer["customer_id"] else None
    orders = yield from read_orders(customer, habit)
    fitting = [order for order in orders if line_of(order, values["product"]) and is_wanted(order)]
    return fitting[0] if fitting else None


def line_of(order: Order, product: str) -> dict[str, Any] | None:
    """Return the line of an order with a product of this name."""
    return next((line for line in order["lines"] if line["name"] == product), None)


def find_product(name: str) -> Asking:
    (text,) = yield Step([call("search_products", text=name)], TEXTS["searching"])
    return next(item for item in json.loads(text) if item["name"] == name)


def has_agreed(reply: str) -> bool | None:
    """Return whether a customer agrees; `None` if the reply is neither yes nor no."""
    first = reply.strip().partition(",")[0].casefold()
    return {"yes": True, "no": False}.get(first)
