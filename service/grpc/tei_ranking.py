"""tei.v1.Rerank and tei.v1.Tokenize: ranked texts and tokens, for text-embeddings-inference's
clients."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable
from functools import partial

from engine.errors import EngineUnavailable, InvalidInput
from engine.types import RankOptions
from service.errors import BodyTooLarge, InvalidField, report_params
from service.fairness import read_by_then, receive_within
from service.grpc.context import Context, timeout_s
from service.grpc.decoding import Undecodable, decode_each
from service.grpc.handlers import current_record
from service.grpc.parts import encoded
from service.grpc.tei import StreamingServicer, metadata, truncation
from service.pb.tei.v1 import tei_pb2 as pb
from service.tokens import tokens_of

_SAME = ("query", "truncate", "raw_scores", "return_text", "truncation_direction")


class TeiRerankServicer(StreamingServicer):
    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:
        arrived_at = time.perf_counter()
        found = await self._engine.rank(
            request.query,
            request.texts,
            options=RankOptions(truncate=truncation(request)),
            timeout_s=timeout_s(context, self._settings),
        )
        current_record.get().add(found.model, found.tokens)
        response = pb.RerankResponse(
            metadata=metadata(
                found.accountings, len(request.query) + sum(map(len, request.texts)), arrived_at
            )
        )
        for one in found.texts:
            response.ranks.add(
                index=one.index,
                text=request.texts[one.index] if request.return_text else None,
                score=one.score if request.raw_scores else one.relevance,
            )
        return response

    async def RerankStream(
        self, requests: AsyncIterable[pb.RerankStreamRequest | Undecodable], context: Context
    ) -> pb.RerankResponse:
        whole = pb.RerankRequest()
        pieces = decode_each(receive_within(requests, self._settings.body_timeout_s))
        with self._arrivals.hold_pieces() as count:
            reading = self._read(pieces, whole, count, timeout_s(context, self._settings))
            if not await self._stream_tasks.run(reading):
                raise EngineUnavailable("the server is stopping and did not read all texts")
            if not whole.texts:  # refused for that, not for the query
                whole.query = "?"
            return await self.Rerank(whole, context)

    async def _read(
        self,
        pieces: AsyncIterable[pb.RerankStreamRequest],
        whole: pb.RerankRequest,
        count: Callable[[int], None],
        timeout_s: float,
    ) -> None:
        num_bytes = 0
        async with read_by_then(timeout_s, "all texts were"):
            async for piece in pieces:
                if not whole.texts:
                    same = {name: getattr(piece, name) for name in _SAME}
                    whole.MergeFrom(pb.RerankRequest(**same))
                _check_same(piece, whole)
                size = len(piece.text.encode())
                num_bytes += size
                self._check_room(len(whole.texts) + 1, num_bytes)
                count(size)
                whole.texts.append(piece.text)

    def _check_room(self, num_texts: int, num_bytes: int) -> None:
        """A stream is held to the limits of one body."""
        if num_texts > (most := self._settings.engine.max_inputs):
            raise InvalidInput(
                f"texts has more than {most} texts, which is the limit",
                code="too_many_inputs",
                param="texts",
                limit=most,
                actual=num_texts,
            )
        if num_bytes > (most := self._settings.max_body_bytes):
            raise BodyTooLarge(
                f"texts has more than {most} bytes, which is the limit",
                param="texts",
                limit=most,
                actual=num_bytes,
            )


def _check_same(piece: pb.RerankStreamRequest, first: pb.RerankRequest) -> None:
    for name in _SAME:
        if getattr(piece, name) != getattr(first, name):
            raise InvalidField(f"{name} must be the same in all messages of a stream", param=name)


class TeiTokenizeServicer(StreamingServicer):
    async def Tokenize(self, request: pb.EncodeRequest, context: Context) -> bytes:
        with report_params(lambda param: "inputs" if param == "text" else param):
            count, tokens = await tokens_of(
                self._engine,
                request.inputs,
                model=None,
                prompt_name=request.prompt_name if request.HasField("prompt_name") else None,
                keep_special=request.add_special_tokens,
                timeout_s=timeout_s(context, self._settings),
            )
        current_record.get().add(self._engine.resolve(None).name, count)
        return await encoded(
            pb.EncodeResponse(tokens=[pb.SimpleToken(**one._asdict())]) for one in tokens
        )

    async def TokenizeStream(
        self, requests: AsyncIterable[pb.EncodeRequest | Undecodable], context: Context
    ) -> None:
        await self._stream(requests, partial(self.Tokenize, context=context), context)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeResponse:
        text = await self._engine.decode(
            request.ids,
            skip_special_tokens=request.skip_special_tokens,
            timeout_s=timeout_s(context, self._settings),
        )
        current_record.get().add(self._engine.resolve(None).name, len(request.ids))
        return pb.DecodeResponse(text=text)

    async def DecodeStream(
        self, requests: AsyncIterable[pb.DecodeRequest | Undecodable], context: Context
    ) -> None:
        await self._stream(requests, partial(self.Decode, context=context), context)
