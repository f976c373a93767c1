"""Cache of keys and values for incremental decoding with beam search.

Shapes: R = rows (hypotheses), B = sentences, K = R / B hypotheses per sentence, H = heads, D = head
channels, n = slots per sentence, T = target positions so far, S = source positions, S' = padded(S).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .positions import additive

MULTIPLE = 16  # torch's CPU softmax is several times slower if rows are shorter than a vector


def padded(length: int) -> int:
    """Round `length` up to a multiple of MULTIPLE."""
    return -(-length // MULTIPLE) * MULTIPLE


class Slots:
    """Assignment of the cache's slots to the target positions of hypotheses.

    A sentence's hypotheses share most of their history. Each position has one slot, to which all
    hypotheses that descend from the position attend. Reordering hypotheses changes only `mask`. A
    slot becomes free when no hypothesis descends from its position any longer.

    Attributes:
        mask: [B, K, n], True = the slot is in the hypothesis's history.
        newest: slots of the newest positions, [B, K].
    """

    def __init__(self, sentences: int, hypotheses: int, device: torch.device) -> None:
        self.mask = torch.zeros(sentences, hypotheses, 0, dtype=torch.bool, device=device)
        self.newest = self.mask.new_zeros((0,))
        self._bias: Tensor | None = None

    def __len__(self) -> int:
        """Return n, the number of slots, including free ones."""
        return self.mask.size(2)

    def add(self) -> None:
        """Assign each hypothesis a slot for its next position."""
        hypotheses = self.mask.size(1)
        used = self.mask.any(dim=1)
        missing = int(used.sum(dim=1).max()) + hypotheses - len(self)
        if missing > 0:
            grow = (0, padded(missing))
            self.mask, used = F.pad(self.mask, grow), F.pad(used, grow)
        nth_free = torch.arange(1, hypotheses + 1, device=used.device).expand(len(used), -1)
        self.newest = torch.searchsorted((~used).cumsum(dim=1), nth_free.contiguous())
        self.mask.scatter_(2, self.newest.unsqueeze(2), True)
        self._bias = None

    def repeat(self, hypotheses: int) -> None:
        """Replace each hypothesis with `hypotheses` copies of itself."""
        self.mask = self.mask.repeat_interleave(hypotheses, dim=1)
        self._bias = None

    def bias(self, heads: int, like: Tensor) -> Tensor:
        """Return the additive mask [B H, K, n], with -inf outside the history and 0 elsewhere."""
        if self._bias is None:
            bias = additive(self.mask, like.dtype)[:, None].expand(-1, heads, -1, -1)
            self._bias = bias.flatten(0, 1)
        return self._bias

    def select(self, rows: Tensor) -> None:
        """Give hypothesis k of sentence b the history of row `rows[b, k]`; `rows` is [B', K]."""
        histories = self.mask.flatten(0, 1).index_select(0, rows.flatten())
        self.mask = histories.view(*rows.shape, len(self))
        self._bias = None


class DecodingCache:
    """State of one decoder between steps.

    Reordering a sentence's hypotheses copies no keys or values. Hypotheses of a sentence share the
    source's keys and values, which are projected once per sentence. Each target position is stored
    once for all hypotheses that descend from it (`Slots`), and a mask selects the slots to which a
    hypothesis attends. When sentences finish, the last sentences of the batch move into the freed
    places. `enter` and `leave` convert between the caller's row order and the cache's.

    Args:
        hypotheses_per_sentence: K; the hypotheses of a sentence are adjacent rows.

    Attributes:
        newest: sentence index [B, 1] and slot index [B, K] of each hypothesis's newest position.
    """

    newest: tuple[Tensor, Tensor]

    def __init__(self, hypotheses_per_sentence: int = 1) -> None:
        self.length = 0  # T
        self.hypotheses_per_sentence = hypotheses_per_sentence
        self.source_mask: Tensor | None = None  # [B, S], True = may attend
        self.layers: list[LayerMemory] = []
        self.changes = 0  # number of changes that invalidate views of the layers' buffers
        self._slots: Slots | None = None
        self._places: Tensor | None = None  # [B], place of each sentence; None = its own index
        self._source_bias: Tensor | None = None

    # Order of calls in a step: begin, enter, every layer's memory, leave

    def begin(self, rows: int, device: torch.device) -> None:
        """Allocate a slot for the next position of each of R rows."""
        if self._slots is None:
            group = self.hypotheses_per_sentence
            self._slots = Slots(rows // group, group, device)
        before = len(self._slots)
        self._slots.add()
        self.changes += len(self._slots) > before
        newest = self._slots.newest
        self.newest = (torch.arange(len(newest), device=device).unsqueeze(1), newest)
        self.length += 1

    @property
    def slots(self) -> Slots:
        assert self._slots is not None, "call begin() first"
        return self._slots

    @property
    def sentences(self) -> int:
        """Number of sentences, B."""
        return self.slots.mask.size(0)

    def enter(self, x: Tensor) -> Tensor:
        """Return rows [R, ...] in the cache's order."""
        if self._places is None:
            return x
        grouped = x.unflatten(0, (-1, self.hypotheses_per_sentence))
        return grouped.index_select(0, self._places.argsort()).flatten(0, 1)

    def leave(self, x: Tensor) -> Tensor:
        """Return rows [R, ...] in the caller's order, the inverse of `enter`."""
        if self._places is None:
            return x
        grouped = x.unflatten(0, (-1, self.hypotheses_per_sentence))
        return grouped.index_select(0, self._places).flatten(0, 1)

    def source_bias(self, heads: int, like: Tensor) -> Tensor:
        """Return the source's additive mask [B H, 1, S'], with -inf at padding and 0 elsewhere."""
        if self._source_bias is None:
            assert self.source_mask is not None
            mask = self.source_mask
            mask = F.pad(mask, (0, padded(mask.size(1)) - mask.size(1)))
            bias = additive(mask, like.dtype)[:, None, None].expand(-1, heads, -1, -1)
            self._source_bias = bias.flatten(0, 1)
        return self._source_bias

    # Between steps

    def repeat(self, hypotheses: int) -> None:
        """Replace each row with `hypotheses` adjacent copies of itself."""
        self.slots.repeat(hypotheses)
        self.hypotheses_per_sentence *= hypotheses

    def reorder(self, new_order: Tensor) -> None:
        """Make row i continue the hypothesis in row new_order[i].

        Args:
            new_order: [R'], values in 0..R-1; each group of K adjacent rows continues one sentence.

        Raises:
            ValueError: if a group is incomplete or contains rows of several sentences.
        """
        if self._slots is None:
            return
        group = self.hypotheses_per_sentence
        places = torch.div(new_order, group, rounding_mode="floor")
        if self._places is not None:
            places = self._places.index_select(0, places)
        rows = places * group + new_order.remainder(group)
        if new_order.numel() % group or bool((places.view(-1, group).diff() != 0).any()):
            raise ValueError(f"each {group} adjacent rows must continue one sentence")
        self._follow(places[::group], rows.view(-1, group))

    def _follow(self, old_places: Tensor, rows: Tensor) -> None:
        """Continue the sentences at `old_places` [B'] with the hypotheses in `rows` [B', K]."""
        remaining = old_places.numel()
        here = torch.arange(remaining, device=old_places.device)
        places = old_places
        if remaining < self.sentences or not torch.equal(old_places, here):
            times = torch.bincount(old_places, minlength=self.sentences)
            if int(times.max()) > 1:
                self._change(lambda x, dim: x.index_select(dim, old_places))
                places = here
            elif remaining < self.sentences:
                places = self._fill(old_places, times)
        self._places = None if torch.equal(places, here) else places
        self.slots.select(rows if self._places is None else rows[places.argsort()])

    def _fill(self, places: Tensor, times: Tensor) -> Tensor:
        """Move trailing sentences into free places; return the places of all sentences, [B']."""
        remaining = places.numel()
        free = (times[:remaining] == 0).nonzero()[:, 0]
        is_beyond = places >= remaining
        moving = places[is_beyond]
        self._change(lambda x, dim: x.index_copy_(dim, free, x.index_select(dim, moving)))
        if self.source_mask is not None:
            self.source_mask = self.source_mask[:remaining]
        return places.masked_scatter(is_beyond, free)

    def _change(self, change: Callable[[Tensor, int], Tensor]) -> None:
        """Apply `change(tensor, dimension)` to the sentence dimension of every tensor."""
        for memory in self.layers:
            memory.change(change)
        if self.source_mask is not None:
            self.source_mask = change(self.source_mask, 0)
        self._source_bias = None
        self.changes += 1


class LayerMemory:
    """Key and value buffers of one layer, with views for the current step."""

    INITIAL_CAPACITY = 64  # slots per sentence; the capacity grows by half

    def __init__(self, cache: DecodingCache) -> None:
        self.cache = cache
        self.target: Tensor | None = None  # [2, B or more, H, n or more, D]
        self.source: tuple[Tensor, Tensor] | None = None  # [B.., H, D, S'] and [B.., H, S', D]
        self._seen = -1
        self._cleared = 0  # number of initialised slots

    def views(self, like: Tensor) -> None:
        """Update the views; `like` is a tensor [..., H, D] with the buffers' dtype and device."""
        cache = self.cache
        if self._seen == cache.changes:
            return
        self._seen = cache.changes
        slots, sentences = len(cache.slots), cache.sentences
        target = self.target = self._room(like, slots)
        if self._cleared < slots:
            # Uninitialised slots could contribute 0 x NaN.
            target[:, :, :, self._cleared : slots].zero_()
            self._cleared = slots
        self.places = target.permute(1, 3, 0, 2, 4)  # [B.., n.., 2, H, D]
        keys, self.values = target[:, :sentences, :, :slots].flatten(1, 2)
        self.keys = keys.transpose(1, 2)
        if self.source is not None:
            self.source_keys, self.source_values = (
                x[:sentences].flatten(0, 1) for x in self.source
            )

    def _room(self, like: Tensor, slots: int) -> Tensor:
        """Return a buffer for target keys and values with at least `slots` slots per sentence."""
        old = self.target
        if old is not None and old.size(3) >= slots:
            return old
        capacity = max(self.INITIAL_CAPACITY, padded(slots + slots // 2))
        sentences, (heads, head_dim) = self.cache.sentences, like.shape[-2:]
        room = like.new_empty((2, sentences, heads, capacity, head_dim))
        if old is not None:
            room[:, :, :, : self._cleared] = old[:, :sentences, :, : self._cleared]
        return room

    def set_source(self, key: Tensor, value: Tensor) -> None:
        """Store the source's keys and values [B, H, S, D] as [B, H, D, S'] and [B, H, S', D]."""
        padding = padded(key.size(2)) - key.size(2)
        self.source = (
            F.pad(key.transpose(2, 3), (0, padding)).contiguous(),
            F.pad(value, (0, 0, 0, padding)).contiguous(),
        )

    def change(self, change: Callable[[Tensor, int], Tensor]) -> None:
        if self.target is not None:
            self.target = change(self.target, 1)
        if self.source is not None:
            self.source = (change(self.source[0], 0), change(self.source[1], 0))
