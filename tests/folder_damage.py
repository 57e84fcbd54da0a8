"""Output folders with something in them that nobody wrote by accident: values, nestings, certificates, files."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prism.checker import digest

Place = tuple[str | int, ...]

HOSTILE: tuple[Any, ...] = (
    "10**10**10", "n**99999", "(a+b+c+d+e)**8*(f+g+h)**8", "9" * 5000, "(" * 3000, "__import__('os').abort()",
    "../../x", "/dev/zero", "a\0b", "\ud800", "x" * 100_000, "", "lambda: 0", "floor(n)/0",
    -1, 0, 2**63, 10**4000, 1e308, float("nan"), float("inf"), True, None, [], {}, [[]], {"is": "symbol"},
    {"is": "power", "of": [10, {"is": "power", "of": [10, 10]}]}, {"is": "product", "of": []},
    {"is": "ratio", "of": [1, 0]}, {"is": "sum", "of": ["n", None]}, {"is": ["symbol"], "of": 1},
    json.loads("[" * 500 + "]" * 500), json.loads('{"is": "sum", "of": [1, ' * 200 + "1" + "]}" * 200),
)  # fmt: skip
"""What is put in place of a value."""


def places(value: object, at: Place = ()) -> Iterator[Place]:
    """The places of all values of a JSON value, those of lists and objects included."""
    if isinstance(value, dict | list):
        for step, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*at, step)
            yield from places(inner, (*at, step))


def replaced(body: dict[str, Any], place: Place, new: Any) -> dict[str, Any]:
    """The JSON value with another one at a place; a certificate's own digest is made to fit where it can be."""
    changed = copy.deepcopy(body)
    inner: Any = functools.reduce(lambda v, k: v[k], place[:-1], changed)  # type: ignore[index]
    inner[place[-1]] = new
    return sealed(changed) if place[0] != "sha256" else changed


def sealed(body: dict[str, Any]) -> dict[str, Any]:
    """The certificate with its digest, where it has one."""
    if "sha256" in body:
        with contextlib.suppress(ValueError, RecursionError):
            body["sha256"] = digest(body)
    return body


def chained(body: dict[str, Any], rows: list[list[Any]]) -> dict[str, Any]:
    """The certificate of other terms, whose last row is proved to be itself."""
    (output,) = body["outputs"]
    end = len(rows) - 1
    made = {**body, "rules": {}, "axes": {"d4": "4"}, "terms": rows}
    steps: dict[str, Any] = {"steps": []} if "steps" in output else {}
    made["outputs"] = [{"name": output["name"], "reference": end, "denotation": end, **steps}]
    return sealed(made)


def certificates(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Certificates of terms that are small as files and large as formulas."""
    x: list[Any] = ["Read", "x", [[[["d4", "1"]], "0"]]]
    doubled = [x, *(["Add", n, n] for n in range(200))]
    squares = [x, *(["Mul", n, n] for n in range(200))]
    deep = [x, *(["Tanh", n] for n in range(10_000))]
    sums: list[list[Any]] = [x]
    for n in range(0, 160, 2):
        sums += [["Sum", "d4", n], ["Mul", n, n + 1]]
    return {
        "doubled": chained(body, doubled),
        "squares": chained(body, squares),
        "deep": chained(body, deep),
        "sums": chained(body, sums),
    }


def written(out: Path, name: str, body: Any) -> None:
    """Put a JSON value in a file of the folder."""
    (out / name).write_bytes(json.dumps(body).encode("utf-8", "surrogatepass"))
