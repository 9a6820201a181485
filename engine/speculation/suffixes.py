"""Finds where the last tokens of a text occurred before, and what followed them there.

An index of the texts of one tenant on one adapter: every run of `KEY_LEN` tokens leads to its latest places,
and the longest match backwards from there decides which of them are believed.
"""

from __future__ import annotations

from typing import NamedTuple

KEY_LEN = 3
"""The shortest match: below, guesses are hardly better than none."""
MAX_MATCH = 24
"""Matches at least this long are taken as equals."""
MAX_PLACES = 16
"""Of one key; the latest are kept."""


class Text:
    """One prompt with its answer, as far as it goes."""

    __slots__ = ("is_open", "num_dropped", "num_indexed", "token_ids")

    def __init__(self, token_ids: list[int]) -> None:
        """`token_ids` may grow while the text is open, and must not change otherwise."""
        self.token_ids = token_ids
        self.is_open = True
        self.num_indexed = 0
        """Tokens, from the beginning, that were indexed."""
        self.num_dropped = 0
        """Of those, tokens whose places were removed again."""

    @property
    def num_held(self) -> int:
        return self.num_indexed - self.num_dropped


class Guess(NamedTuple):
    """What may follow a text."""

    match_len: int
    """Tokens that precede the places it comes from and are the text's last: 0 without a match."""
    token_ids: list[int]
    shares: list[float]
    """For each token: the share of the places at which it and all before it followed."""


NOTHING = Guess(0, [], [])


class SuffixIndex:
    """The places of all runs of tokens in some texts."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], list[tuple[Text, int]]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def extend(self, text: Text, most: int) -> int:
        """Indexes up to `most` more tokens of a text. Returns how many."""
        tokens, begin = text.token_ids, text.num_indexed
        end = min(len(tokens), begin + most)
        for place in range(max(begin, KEY_LEN), end):
            key = (tokens[place - 3], tokens[place - 2], tokens[place - 1])
            found = self._places.get(key)
            if found is None:
                self._places[key] = [(text, place)]
            else:
                found.append((text, place))
                if len(found) > MAX_PLACES:
                    del found[0]
        text.num_indexed = end
        return end - begin

    def drop(self, text: Text, most: int) -> int:
        """Removes the places of up to `most` tokens of a text, from its beginning. Returns how many."""
        tokens, begin = text.token_ids, text.num_dropped
        end = min(text.num_indexed, begin + most)
        for place in range(max(begin, KEY_LEN), end):
            key = (tokens[place - 3], tokens[place - 2], tokens[place - 1])
            found = self._places.get(key)
            if found is None:
                continue
            found[:] = [one for one in found if one[0] is not text or one[1] != place]
            if not found:
                del self._places[key]
        text.num_dropped = end
        return end - begin

    def guess(self, tokens: list[int], most: int) -> Guess:
        """Returns up to `most` tokens that may follow: at each, the one that followed at most of the places
        left; of several, the one at the latest place.
        """
        size = len(tokens)
        if size < KEY_LEN:
            return NOTHING
        places = self._places.get((tokens[-3], tokens[-2], tokens[-1]))
        if places is None:
            return NOTHING
        longest, cursors = KEY_LEN, list[tuple[list[int], int]]()
        tail = tokens[size - KEY_LEN :]
        for text, place in reversed(places):
            other = text.token_ids
            # Most places are left at their first token, most others at a stretch: tokens one by one are slow.
            if place < longest or other[place - longest] != tail[0]:
                continue
            if longest > KEY_LEN and other[place - longest : place] != tail:
                continue
            if longest < MAX_MATCH:
                length, bound = longest, min(MAX_MATCH, size, place)
                while length < bound and other[place - 1 - length] == tokens[size - 1 - length]:
                    length += 1
                if length > longest:
                    longest, cursors, tail = length, [], tokens[size - length :]
            cursors.append((other, place))
        return Guess(longest, *_followed(cursors, most))


def _followed(cursors: list[tuple[list[int], int]], most: int) -> tuple[list[int], list[float]]:
    """Returns what followed at some places, and the share of the places at which it and all before it did."""
    token_ids: list[int] = []
    shares: list[float] = []
    total = len(cursors)
    while len(cursors) > 1 and len(token_ids) < most:
        following = [other[place] if place < len(other) else None for other, place in cursors]
        some = [token_id for token_id in following if token_id is not None]
        if not some:
            return token_ids, shares
        token_id = max(some, key=some.count)
        cursors = [
            (other, place + 1)
            for (other, place), one in zip(cursors, following, strict=True)
            if one == token_id
        ]
        token_ids.append(token_id)
        shares.append(len(cursors) / total)
    if len(cursors) == 1:
        other, place = cursors[0]
        rest = other[place : place + most - len(token_ids)]
        token_ids += rest
        shares += [1 / total] * len(rest)
    return token_ids, shares
