"""Groups that change with the depth of a network: each a subgroup of the one before."""

from __future__ import annotations

from dataclasses import dataclass

from coattend.groups.embedding import embedding
from coattend.groups.finite_group import FiniteGroup
from coattend.groups.named import get_group


@dataclass(frozen=True)
class GroupSequence:
    """The groups of a network from its first part to its last.

    What the parts are, layers or stages, is a matter of the network. ``after[i]`` is how many parts have passed when
    ``groups[i + 1]`` begins.
    """

    groups: tuple[FiniteGroup, ...]
    after: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for larger, smaller in zip(self.groups, self.groups[1:], strict=False):
            embedding(smaller, larger)
        if list(self.after) != sorted(set(self.after)) or any(number < 1 for number in self.after):
            raise ValueError(f"{self} has to change its group after one part or more, and later each time.")

    @staticmethod
    def of(group: FiniteGroup | str | GroupSequence) -> GroupSequence:
        """Return a sequence from its text, ``"D4>C4@3"``, or of one group.

        ``@n`` begins a group after n parts; without it, one part after the group before it began.

        >>> str(GroupSequence.of("p4m>p4@3>C1"))
        'D4>C4@3>C1@4'
        """
        if isinstance(group, GroupSequence):
            return group
        if not isinstance(group, str) or ">" not in group:
            return GroupSequence((get_group(group),))
        first, *others = (part.strip() for part in group.split(">"))
        groups, after = [get_group(first)], [0]
        for part in others:
            name, at, number = (text.strip() for text in part.partition("@"))
            if at and not (number.isascii() and number.isdigit() and len(number) < 6):
                raise ValueError(f"expected a group such as 'D4>C4@3', with a whole number after '@', got {group!r}.")
            groups.append(get_group(name))
            after.append(int(number) if at else after[-1] + 1)
        return GroupSequence(tuple(groups), tuple(after[1:]))

    @property
    def first(self) -> FiniteGroup:
        """The group that a network begins with."""
        return self.groups[0]

    @property
    def last(self) -> FiniteGroup:
        """The group that the network as a whole commutes with."""
        return self.groups[-1]

    def at(self, part: int) -> FiniteGroup:
        """Return the group of a part, counted from 1."""
        return self.groups[sum(part > passed for passed in self.after)]

    @property
    def is_exact(self) -> bool:
        """Whether no element of any group needs interpolation."""
        return all(group.is_exact for group in self.groups)

    def __str__(self) -> str:
        later = (f">{group.name}@{number}" for group, number in zip(self.groups[1:], self.after, strict=True))
        return self.first.name + "".join(later)
