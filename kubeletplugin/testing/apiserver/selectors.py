"""Field selectors and pages of a list."""

import base64
import json
from collections.abc import Mapping

from kubeletplugin.contract import Object
from kubeletplugin.testing.apiserver.errors import StatusError, bad_request, expired
from kubeletplugin.testing.apiserver.resources import Resource


class FieldSelector:
    """``a=b,c!=d`` over the fields a resource offers, besides metadata.name and namespace."""

    def __init__(self, resource: Resource, text: str) -> None:
        self._terms: list[tuple[tuple[str, ...], str, bool]] = []
        for term in filter(None, text.split(",")):
            field, equal, value = term.replace("==", "=").partition("=")
            negated = field.endswith("!")
            field = field.removesuffix("!")
            if not equal:
                raise bad_request(f"invalid field selector {term!r}")
            if field not in ("metadata.name", "metadata.namespace", *resource.selectable):
                raise bad_request(f"field label not supported: {field}")
            self._terms.append((tuple(field.split(".")), value, not negated))

    def matches(self, found: Object | None) -> bool:
        return found is not None and all(
            (_value(found, path) == value) is wanted for path, value, wanted in self._terms
        )


def _value(found: Object, path: tuple[str, ...]) -> str:
    current: object = found
    for step in path:
        current = current.get(step) if isinstance(current, Mapping) else None
    return "" if current is None else str(current)


def page(
    items: list[Object], query: Mapping[str, str], version: int, compacted: int
) -> tuple[list[Object], Object]:
    """One page and its list metadata. The token carries the version of the first page, as in
    the real server; unlike there, later pages show the objects as they are now."""
    start = 0
    if token := query.get("continue"):
        start, version = _decode(token)
        if version < compacted:
            raise expired("The provided continue parameter is too old")
    limit = int(query.get("limit") or 0) or len(items)
    metadata: Object = {"resourceVersion": str(version)}
    rest = len(items) - start - limit
    if rest > 0:
        token = base64.urlsafe_b64encode(json.dumps([start + limit, version]).encode()).decode()
        metadata |= {"continue": token, "remainingItemCount": rest}
    return items[start : start + limit], metadata


def _decode(token: str) -> tuple[int, int]:
    try:
        start, version = json.loads(base64.urlsafe_b64decode(token))
        return int(start), int(version)
    except (ValueError, TypeError) as error:
        raise StatusError(400, "BadRequest", f"continue key is not valid: {token!r}") from error
