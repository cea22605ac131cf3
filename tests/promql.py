"""Parses PromQL for the series of an expression, for tests of rules and dashboards."""

from dataclasses import dataclass

import promql_parser


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One selector of an expression: a series' name, and its labels."""

    name: str
    labels: frozenset[str]


def selectors(expression: str) -> set[Selector]:
    """Every selector of `expression`; raises ValueError for an invalid one.

    A selector without a name, such as {__name__=~"a.*"}, is refused too: its series are unknown.
    """
    found: set[Selector] = set()
    nameless: list[str] = []

    def visit(node: promql_parser.Expr) -> bool:
        selector = getattr(node, "vector_selector", node)
        if isinstance(selector, promql_parser.VectorSelector):
            if selector.name is None:
                nameless.append(str(selector))
            else:
                labels = frozenset(each.name for each in selector.matchers.matchers)
                found.add(Selector(name=selector.name, labels=labels - {"__name__"}))
        return True

    promql_parser.walk(promql_parser.parse(expression), visit)
    if nameless:
        raise ValueError(f"{expression}: a selector without a name: {nameless[0]}")
    return found


def metric_names(expression: str) -> set[str]:
    """The names of all selected series; raises as `selectors`."""
    return {selector.name for selector in selectors(expression)}
