"""Selectors of requests: CEL with the optional engine, else comparisons joined by ``&&``.

Kubernetes adds quantities and versions to CEL (``dynamic-resource-allocation/cel``). The engine
has neither: both travel as maps, because its overloads on the dynamic type do not dispatch.
"""

import functools
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from kubeletplugin.contract import Object
from kubeletplugin.quantities import quantity
from kubeletplugin.testing.apiserver.values import semver

Selector: TypeAlias = Callable[[str, Mapping[str, Any]], bool]  # driver, device

_COMPARISON = re.compile(
    r"""device\.(?:(driver)|attributes\[(['"])([^'"]+)\2\]\.(\w+))\s*==\s*(.+)""", re.ASCII
)


class SelectorError(Exception):
    """The expression does not compile, fails on a device, or needs the CEL engine."""


def attribute_value(driver: str, device: Mapping[str, Any], qualified: str) -> object:
    """The value of ``<domain>/<name>``; a name without a domain belongs to the driver."""
    domain, name = qualified.split("/", 1)
    attributes = device.get("attributes") or {}
    entry = attributes.get(qualified)
    if entry is None and domain == driver:
        entry = attributes.get(name)
    return next(iter(entry.values())) if entry else None


@functools.lru_cache(maxsize=256)
def compile_selector(expression: str) -> Selector:
    """Raises ``SelectorError``, at the latest when the selector meets a device."""
    try:
        engine = _engine()
    except ImportError:
        return _simple(expression)
    try:
        program = engine.compile(expression)
    except Exception as error:
        raise SelectorError(f"CEL expression {expression!r}: {error}") from error
    return functools.partial(_evaluate, program, expression)


def _evaluate(program: Any, expression: str, driver: str, device: Mapping[str, Any]) -> bool:
    result = program.eval(data={"device": _variables(driver, device)})
    value = result.value()
    if not isinstance(value, bool):
        name = device.get("name")
        raise SelectorError(f"CEL expression {expression!r} on device {name}: {value}")
    return value


def _variables(driver: str, device: Mapping[str, Any]) -> Object:
    attributes: dict[str, Object] = {driver: {}}
    for domain, name, entry in _split(driver, device.get("attributes") or {}):
        attributes.setdefault(domain, {})[name] = _attribute(entry)
    capacity: dict[str, Object] = {driver: {}}
    for domain, name, entry in _split(driver, device.get("capacity") or {}):
        capacity.setdefault(domain, {})[name] = _quantity(str(entry["value"]))
    return {
        "driver": driver,
        "allowMultipleAllocations": bool(device.get("allowMultipleAllocations")),
        "attributes": attributes,
        "capacity": capacity,
    }


def _split(driver: str, entries: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for key, entry in entries.items():
        domain, slash, name = key.rpartition("/")
        yield (domain if slash else driver), name, entry


def _attribute(entry: Mapping[str, Any]) -> object:
    return _version(entry["version"]) if "version" in entry else next(iter(entry.values()))


def _simple(expression: str) -> Selector:
    terms = []
    for part in expression.split("&&"):
        match = _COMPARISON.fullmatch(part.strip())
        wanted = _literal(match[5]) if match else None
        if match is None or wanted is None:
            raise SelectorError(
                f"CEL expression {expression!r}: without the CEL engine only comparisons of"
                " device.driver and device.attributes[…] joined by && are understood;"
                " install cel-expr-python"
            )
        terms.append((None if match[1] else f"{match[3]}/{match[4]}", wanted))
    return lambda driver, device: all(
        (driver if name is None else attribute_value(driver, device, name)) == value
        for name, value in terms
    )


def _literal(text: str) -> object:
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1]
    try:
        value: object = json.loads(text)
    except ValueError:
        return None
    return value


def _quantity(text: str) -> Object:
    return {"$quantity": str(quantity(text))}


def _version(text: str) -> Object:
    return {"$version": list(semver(text))}


def _amount(value: Mapping[str, Any]) -> Any:
    return Decimal(value["$quantity"]) if "$quantity" in value else tuple(value["$version"])


def _is_quantity(text: str) -> bool:
    try:
        quantity(text)
    except ValueError:
        return False
    return True


@functools.cache
def _engine() -> Any:
    """Raises ``ImportError`` without cel-expr-python."""
    from cel_expr_python import cel, ext  # noqa: PLC0415  (optional)

    extensions = []
    for module in pkgutil.iter_modules(ext.__path__):
        loaded = importlib.import_module(f"cel_expr_python.ext.{module.name}")
        extensions += [getattr(loaded, name)() for name in dir(loaded) if name.startswith("Ext")]
    return cel.NewEnv(
        variables={"device": cel.Type.DYN}, functions=_functions(cel), extensions=extensions
    )


def _functions(cel: Any) -> list[Any]:
    kinds = cel.Type
    amount = kinds.Map(kinds.STRING, kinds.DYN)
    many = kinds.List(kinds.DYN)
    declared: list[tuple[str, Any, list[Any], bool, Callable[..., Any]]] = [
        ("quantity", amount, [kinds.STRING], False, _quantity),
        ("semver", amount, [kinds.STRING], False, _version),
        ("isQuantity", kinds.BOOL, [kinds.STRING], False, _is_quantity),
        (
            "isGreaterThan",
            kinds.BOOL,
            [amount, amount],
            True,
            lambda a, b: _amount(a) > _amount(b),
        ),
        ("isLessThan", kinds.BOOL, [amount, amount], True, lambda a, b: _amount(a) < _amount(b)),
        ("compareTo", kinds.INT, [amount, amount], True, _compare),
        ("asInteger", kinds.INT, [amount], True, lambda a: int(_amount(a))),
        ("includes", kinds.BOOL, [many, kinds.STRING], True, lambda items, item: item in items),
    ]
    return [
        cel.FunctionDecl(
            name, [cel.Overload(f"k8s_{name}", result, taken, is_member=member, impl=call)]
        )
        for name, result, taken, member, call in declared
    ]


def _compare(left: Mapping[str, Any], right: Mapping[str, Any]) -> int:
    first, second = _amount(left), _amount(right)
    return int(first > second) - int(first < second)
