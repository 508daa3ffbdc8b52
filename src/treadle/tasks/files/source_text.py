"""Generated source files for the tasks that are about code."""

from treadle.tasks.draw import Draw
from treadle.tasks.files.words import PRODUCTS, SERVICES

VERBS = (
    "build",
    "check",
    "close",
    "fetch",
    "format",
    "index",
    "load",
    "merge",
    "parse",
    "send",
    "sort",
    "store",
)
LANGUAGES = ("py", "js", "go")
COMMENT = {"py": "#", "js": "//", "go": "//"}


def identifier(draw: Draw) -> str:
    """Return an identifier such as `merge_pump`."""
    return f"{draw.pick(VERBS)}_{draw.pick(PRODUCTS)}"


def function(draw: Draw, language: str, name: str, called: str, comment: str | None = None) -> list[str]:
    """Return the lines of a function that calls another one."""
    value, number = draw.pick(PRODUCTS), draw.between(2, 99)
    notes = [] if comment is None else [f"    {COMMENT[language]} {comment}"]
    if language == "py":
        head, end = f"def {name}({value}):", []
        body = [f"    {value} = {called}({value})", f"    return {value} + {number}"]
    elif language == "js":
        head, end = f"function {name}({value}) {{", ["}"]
        body = [f"    const result = {called}({value});", f"    return result + {number};"]
    else:
        head, end = f"func {name}({value} int) int {{", ["}"]
        body = [f"    result := {called}({value})", f"    return result + {number}"]
    return [head, *notes, *body, *end, ""]


def source_paths(draw: Draw, folder: str, count: int) -> list[str]:
    """Return different paths of source files, some of them in subfolders."""
    paths = []
    for service in draw.sample(SERVICES, count):
        below = draw.pick(("", "", "core/", "web/", "jobs/"))
        paths.append(f"{folder}/{below}{service}.{draw.pick(LANGUAGES)}")
    return paths
