"""The states that the layers of an open document read, computed once for all who ask for them.

Questions about a document come together: the page asks for a map, topics, the structure and a
diagnosis at once. The first begins a pass of the encoder, and each takes it further, a step at a
time, until the layer that it needs is there. So nothing is computed twice, and a map of the first
layer does not wait for the last one. The cache keeps the states of all layers, if they fit, and the
projections of the layer that was asked for last, if there is room besides: its heads are asked for
a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from engine.analysis.cache import ByteCache
from engine.analysis.head_attention import head_attention_bytes
from engine.analysis.layer_capture import (
    CapturedLayer,
    ProjectedLayer,
    capture_bytes,
    capture_layers,
    projection_bytes,
    states_by_layer,
)
from engine.analysis.open_document import OpenDocument
from engine.model.tiled_pass import Projections, kept_bytes
from engine.steps import Steps


class DocumentStates:
    """The states before each layer and after the last one, as far as the pass has come.

    Only the device's thread takes it further, so two readers are never within one step.
    """

    def __init__(self, document: OpenDocument) -> None:
        self._document = document
        self._begin()

    @property
    def num_bytes(self) -> int:
        """Of the states of all layers and, until they are there, of the pass."""
        encoder, length = self._document.model.encoder, self._document.num_tokens
        of_pass = 0 if self.is_whole else kept_bytes(encoder, length, keep_projections=True)
        return _state_bytes(self._document) + of_pass

    def before(self, layer: int) -> Steps[Tensor]:
        """What a layer reads, [T, W]; of the number of layers, what the last one returns."""
        while len(self._computed) <= layer:
            self._advance()
            yield
        return self._computed[layer]

    def _begin(self) -> None:
        self._computed: list[Tensor] = []
        self._steps: Steps[None] | None = self._read()

    @property
    def is_whole(self) -> bool:
        return len(self._computed) == self._document.model.info.num_layers + 1

    def _advance(self) -> None:
        assert self._steps is not None, "no layer comes after the last one"
        try:
            next(self._steps)
        except Exception:
            self._begin()  # for the other readers
            raise
        if self.is_whole:
            self._steps = None  # and with them the memory of the pass

    def _read(self) -> Steps[None]:
        for steps in states_by_layer(self._document.model, self._document.prepared):
            self._computed.append((yield from steps))
            yield


def states_before(document: OpenDocument, layer: int, cache: ByteCache) -> Steps[Tensor]:
    """What a layer of the document reads: [T, W]."""
    if _states_fit(document, cache):
        return (yield from _read(document, _shared_states(document, cache), layer, cache))
    # Without a copy of the other layers' states.
    layers = states_by_layer(document.model, document.prepared)
    for _ in range(layer):
        yield from next(layers)
        yield
    return (yield from next(layers))


class _LastProjections(NamedTuple):
    layer: int
    projections: Projections


def project_layer(document: OpenDocument, index: int, cache: ByteCache) -> Steps[ProjectedLayer]:
    """One layer of the document, with those before it as far as they are not known."""
    before = yield from states_before(document, index, cache)
    return _projected(document, index, before, cache)


def project_layers_of(
    document: OpenDocument, cache: ByteCache, indices: Sequence[int]
) -> Iterator[Steps[ProjectedLayer]]:
    """These layers up to their projections, in ascending order. Where the states of the document do
    not fit in the cache, all layers."""
    if not _states_fit(document, cache):
        yield from capture_layers(document.model, document.prepared)
        return
    # This reference keeps the states while the cache makes room for other documents.
    states = _shared_states(document, cache)
    for index in indices:
        yield _project_from(states, document, index, cache)


def capture_layers_of(
    document: OpenDocument, cache: ByteCache, indices: Sequence[int] | None = None
) -> Iterator[Steps[CapturedLayer]]:
    """These layers, None for all, in ascending order, as `project_layers_of`."""
    if not _states_fit(document, cache):
        yield from capture_layers(document.model, document.prepared)
        return
    states = _shared_states(document, cache)
    for index in range(document.model.info.num_layers) if indices is None else indices:
        yield _captured(document, index, states, cache)


def _project_from(
    states: DocumentStates, document: OpenDocument, index: int, cache: ByteCache
) -> Steps[ProjectedLayer]:
    before = yield from _read(document, states, index, cache)
    return _projected(document, index, before, cache)


def _captured(
    document: OpenDocument, index: int, states: DocumentStates, cache: ByteCache
) -> Steps[CapturedLayer]:
    before = yield from states.before(index)
    after = yield from _read(document, states, index + 1, cache)
    return CapturedLayer(**vars(_projected(document, index, before, cache)), after=after)


def _projected(
    document: OpenDocument, index: int, before: Tensor, cache: ByteCache
) -> ProjectedLayer:
    key = "projections", document.handle
    known: _LastProjections | None = cache.get(key)
    if known is None or known.layer != index:
        encoder, length = document.model.encoder, document.num_tokens
        found = Projections(*encoder.projected(index, before, [0, length]))
        known = _LastProjections(index, found)
        cache.put_beside(key, known, projection_bytes(encoder, length))
    return ProjectedLayer(index=index, before=before, **known.projections._asdict())


def document_capture_bytes(document: OpenDocument, cache: ByteCache) -> int:
    """What capturing its layers takes; where the cache has its states, one layer's projections."""
    num_bytes = capture_bytes if cache.get(_key(document)) is None else projection_bytes
    return num_bytes(document.model.encoder, document.num_tokens)


def _shared_states(document: OpenDocument, cache: ByteCache) -> DocumentStates:
    states: DocumentStates = cache.get(_key(document)) or DocumentStates(document)
    cache.put(_key(document), states, states.num_bytes)
    return states


def _read(
    document: OpenDocument, states: DocumentStates, layer: int, cache: ByteCache
) -> Steps[Tensor]:
    found = yield from states.before(layer)
    if cache.get(_key(document)) is not states:  # perhaps there is room for them without the pass
        yield from states.before(document.model.info.num_layers)
    if states.is_whole:
        cache.put(_key(document), states, states.num_bytes)
    return found


def _key(document: OpenDocument) -> tuple[str, str]:
    return "states", document.handle


def _states_fit(document: OpenDocument, cache: ByteCache) -> bool:
    """Whether the states of all layers fit beside one head's attention: otherwise each would drive
    the other out."""
    weights = document.model.encoder.weights
    of_head = head_attention_bytes(document.num_tokens, weights.head_dim, weights.state_dtype)
    return _state_bytes(document) + of_head <= cache.max_derived_bytes


def _state_bytes(document: OpenDocument) -> int:
    encoder, length = document.model.encoder, document.num_tokens
    return (len(encoder.layers) + 1) * kept_bytes(encoder, length, keep_projections=False)
