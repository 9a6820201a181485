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
        longest, cursors = 0, list[tuple[list[int], int]]()
        for text, place in reversed(places):
            other = text.token_ids
            length, bound = KEY_LEN, min(MAX_MATCH, size, place)
            while length < bound and other[place - 1 - length] == tokens[size - 1 - length]:
                length += 1
            if length > longest:
                longest, cursors = length, []
            if length == longest:
                cursors.append((other, place))
        token_ids: list[int] = []
        shares: list[float] = []
        total = len(cursors)
        while len(token_ids) < most:
            cursors = [(other, place) for other, place in cursors if place < len(other)]
            if not cursors:
                break
            following = [other[place] for other, place in cursors]
            token_id = following[0] if len(following) == 1 else max(following, key=following.count)
            cursors = [(other, place + 1) for other, place in cursors if other[place] == token_id]
            token_ids.append(token_id)
            shares.append(len(cursors) / total)
        return Guess(longest, token_ids, shares)
