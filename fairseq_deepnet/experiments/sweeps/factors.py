"""Factors of a sweep: what differs between its cells, and how a definition says it."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any, Final

from fairseq_deepnet.experiments import paper
from fairseq_deepnet.tools.configs import Value

_FACTOR: Final = {"set", "values", "schemes", "others", "tiny"}


@dataclasses.dataclass(frozen=True)
class Factor:
    """What differs between the cells of a panel.

    Arguments:
        sets: option -> what the value is multiplied by; 1 also takes words
        values: the values, as options take them
        tiny: the values of a rehearsal
    """

    name: str
    sets: dict[str, Fraction]
    values: tuple[Value, ...]
    tiny: tuple[Value, ...]

    def options(self, value: Value) -> dict[str, Value]:
        """The options that a value stands for; ValueError where it cannot be shared out."""
        found: dict[str, Value] = {}
        for option, multiple in self.sets.items():
            if multiple == 1:
                found[option] = value
                continue
            try:
                product = multiple * Fraction(str(value))
            except ValueError as error:
                raise ValueError(f"{self.name}={value}: a number is expected") from error
            if product.denominator != 1 or product < 1:
                raise ValueError(
                    f"{self.name}={value}: {option} would be {float(product):g}, "
                    "and must be a whole number from 1 on"
                )
            found[option] = int(product)
        return found

    def value_of(self, options: dict[str, Any]) -> str | None:
        """The key of the value which options have been made with; None where there is none."""
        found = set()
        for option, multiple in self.sets.items():
            if option not in options:
                return None
            value = options[option]
            try:
                found.add(paper.key(value if multiple == 1 else Fraction(str(value)) / multiple))
            except ValueError:
                return None
        return found.pop() if len(found) == 1 else None


def check_keys(content: dict[str, Any], allowed: set[str], place: str) -> None:
    """ValueError, with the place in the file, for a key that is not allowed."""
    for key in content:
        if key not in allowed:
            raise ValueError(f"{place}unknown key {key!r}; known are {', '.join(sorted(allowed))}")


def read_factor(name: str, content: dict[str, Any], place: str) -> Factor:
    """One entry of `factors`; ValueError, with the place in the file, for what makes no sense."""
    place = f"{place}factors: {name}: "
    check_keys(content, _FACTOR, place)
    sets = content.get("set")
    if isinstance(sets, str):
        sets = [sets]
    if not sets or not isinstance(sets, list | dict):
        raise ValueError(f"{place}set: an option, a list of options, or option: multiple")
    multiples = sets if isinstance(sets, dict) else dict.fromkeys(sets, 1)
    if ("values" in content) == ("schemes" in content):
        raise ValueError(f"{place}either values or schemes is expected")
    values = content.get("values") or _schemes(content["schemes"], bool(content.get("others")))
    return Factor(
        name,
        {option: Fraction(str(multiple)) for option, multiple in multiples.items()},
        tuple(values),
        tuple(content.get("tiny") or values),
    )


def _schemes(wanted: str | list[str], others: bool) -> list[str]:
    """The registered schemes of a published table or a list, in its order; then the others.

    Raises ValueError for a listed name that is neither registered nor one of the paper's.
    """
    from fairseq_deepnet.schemes import SCHEMES, scheme_class

    if isinstance(wanted, str):
        names = list(paper.table(wanted).rows)
    else:
        names = wanted
        for name in set(names) - set(paper.table("table1").rows):
            scheme_class(name)
    listed = [name for name in names if name in SCHEMES]
    return listed + [name for name in SCHEMES if others and name not in listed]
