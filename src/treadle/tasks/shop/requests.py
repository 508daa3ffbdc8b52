"""Templates about orders that are not delivered yet, about new orders, and about people who are not customers."""

from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.generated import GeneratedCase
from treadle.tasks.shop import clerk
from treadle.tasks.shop.desk import DATA
from treadle.tasks.shop.shops import Shop
from treadle.tasks.solver import Ask, Habit, Solver, Step

PUSHES = DATA["pushes"]


def _add_open_order(shop: Shop) -> tuple[dict[str, str], int, str | None]:
    """Add an order to be changed. Return its name for the customer, its number, and the rule against it."""
    product, other = shop.draw.sample([item for item in shop.products if item.category != "hygiene"], 2)
    lines = {product: shop.draw.between(1, 4), other: 1}
    is_shipped = shop.level == 1 and shop.draw.chance(0.5)
    if shop.level == 2:
        shop.add_order(shop.customer, {product: 1}, "delivered")
        shop.add_order(shop.customer, {product: 2}, "shipped")
        shop.add_order(shop.customer, {other: 2}, "pending")
    order_id = shop.add_order(shop.customer, lines, "shipped" if is_shipped else "pending")
    shop.add_order(shop.customer, {other: 1}, "delivered")
    named = {"product": product.name} if shop.level == 2 else {"order": str(order_id)}
    return named, order_id, "shipped" if is_shipped else None


def _find_open_order(values: Mapping[str, str], habit: Habit) -> clerk.Asking:
    """Return the order that the customer wants changed; a text if the matter is refused."""
    customer, order = (yield from clerk.identify(values)), None
    if customer is not None:
        order = yield from clerk.find_order(
            values, customer, habit, lambda order: order["status"] == "pending"
        )
    if order is None:
        return (yield from clerk.refuse("identity"))
    return (
        order
        if order["status"] == "pending"
        else (yield from clerk.refuse("shipped", order=order["order_id"]))
    )


def generate_cancel(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer who wants an order cancelled."""
    shop = Shop(draw, level)
    named, order_id, refused = _add_open_order(shop)
    actions = [] if refused else [("cancel_order", {"order_id": order_id})]
    pushes = draw.sample(PUSHES, 1) if refused else ()
    return shop.case(shop.introduce(named), actions, refused=refused, pushes=pushes)


def solve_cancel(values: Mapping[str, str], habit: Habit) -> Solver:
    """Find the customer and the order, and cancel it if it is pending."""
    order = yield from _find_open_order(values, habit)
    if isinstance(order, str):
        return order
    order_id = order["order_id"]
    made = clerk.change_order("cancel_order", lambda now: now["status"] == "cancelled", order_id=order_id)
    yield Step([made], "It is pending, so it can be cancelled.")
    return (yield from clerk.finish(habit, f"Order {order_id} is cancelled, and you get your money back."))


def generate_change_address(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer who wants an order sent elsewhere."""
    shop = Shop(draw, level)
    named, order_id, refused = _add_open_order(shop)
    address = shop.address(f"{draw.between(10_000, 99_999)}")
    actions = [] if refused else [("change_address", {"order_id": order_id, "address": address})]
    pushes = draw.sample(PUSHES, 1) if refused else ()
    return shop.case(shop.introduce({**named, "address": address}), actions, refused=refused, pushes=pushes)


def solve_change_address(values: Mapping[str, str], habit: Habit) -> Solver:
    """Find the customer and the order, and change its address if it is pending."""
    order = yield from _find_open_order(values, habit)
    if isinstance(order, str):
        return order
    order_id, address = order["order_id"], values["address"]
    made = clerk.change_order(
        "change_address", lambda now: now["address"] == address, order_id=order_id, address=address
    )
    yield Step([made], "It has not left yet, so the address can be changed.")
    return (yield from clerk.finish(habit, f"Order {order_id} goes to {address}."))


def generate_buy(draw: Draw, level: int) -> GeneratedCase:
    """Draw a customer who wants to buy something, of which there may not be enough."""
    shop = Shop(draw, level)
    product, count, agrees = shop.pick(), draw.between(2, 6), True
    sold, refused = count, None
    if level > 0 and draw.chance(0.3 + 0.2 * level):
        sold, agrees = count - draw.between(1, count - 1), draw.chance(0.6)
        shop.set_stock(product, sold)
        refused = None if agrees else "stock"
    shop.add_order(shop.customer, {shop.pick(): 1}, "delivered")
    customer_id = shop.customer.customer_id
    # The number of the new order is the one after the newest, so no orders may be added later than `case` does.
    line = {"sku": product.sku, "count": sold}
    actions = [] if refused else [("place_order", {"customer_id": customer_id, "lines": [line]})]
    values = shop.introduce({"product": product.name, "count": str(count)})
    return shop.case(values, actions, refused=refused, agrees=agrees)


def solve_buy(values: Mapping[str, str], habit: Habit) -> Solver:
    """Find the customer and the product, and order what there is of it."""
    customer = yield from clerk.identify(values)
    if customer is None:
        return (yield from clerk.refuse("identity"))
    name, count = values["product"], int(values["count"])
    product = yield from clerk.find_product(name)
    if (stock := product["stock"]) < count:
        (reply,) = yield Ask(f"There are only {stock} of the {name} in stock. Shall I order {stock} for you?")
        if not clerk.has_agreed(reply):
            return (yield from clerk.refuse("stock", stock=stock, product=name))
        count = stock
    orders = yield from clerk.list_orders(customer)
    yield Step(
        [clerk.place_order(customer, {product["sku"]: count}, len(orders))], "There are enough of them."
    )
    return (yield from clerk.finish(habit, f"I have ordered {count} of the {name} for you."))


def generate_stranger(draw: Draw, level: int) -> GeneratedCase:
    """Draw somebody with a wrong postcode or address, or with the order of somebody else."""
    shop = Shop(draw, level)
    own = shop.add_order(shop.customer, {shop.pick(): 1}, "pending")
    other = shop.add_order(shop.customers[-1], {shop.pick(): 2}, "pending")
    values = {"order": str(own)}
    facts: dict[str, str] = {}
    if level == 0:
        facts = {"postcode": f"{draw.between(10_000, 99_999)}"}
        values |= {"email": shop.customer.email, **facts}
    elif level == 1:
        facts = {"email": shop.customer.email.replace("@", "-home@")}
    else:
        values = {"order": str(other)}
    return shop.case(values, [], refused="identity", pushes=draw.sample(PUSHES, 1), facts=facts)


def solve_stranger(values: Mapping[str, str], habit: Habit) -> Solver:
    """Find the customer and the order, and cancel it if it is theirs."""
    return (yield from solve_cancel(values, habit))
