"""Tasks on text: `embedding`, `rerank` and `text_generation`.

Vectors travel as raw little-endian float32, row after row. Token counts are of the input before it was cut;
`truncated[i]` says that input i was cut to the limit. Empty lists have empty results; an empty text is a text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from schemas.tasks.invocation import Invocation, Seed

FinishReason = Literal["stop", "length", "cancelled"]


class EmbedRequest(Invocation, frozen=True, tag="embed"):
    """Task `embedding`. `prompt_name` is one of the profile's prompts; None puts nothing before the texts."""

    texts: list[str]
    prompt_name: str | None = None


class Embedded(Struct, frozen=True, tag="embedded", forbid_unknown_fields=True):
    """`vectors` holds `rows * dimensions` float32; row i belongs to text i."""

    vectors: bytes
    rows: int
    dimensions: int
    tokens: list[int]
    truncated: list[bool]


class RerankRequest(Invocation, frozen=True, tag="rerank"):
    """Task `rerank`: how well each document answers the query."""

    query: str
    documents: list[str]


class Reranked(Struct, frozen=True, tag="reranked", forbid_unknown_fields=True):
    """`scores[i]` is of document i, higher is better; `order` lists the documents' numbers, best first.

    Equal scores keep the documents' order. Tokens count the query and document i together.
    """

    scores: list[float]
    order: list[int]
    tokens: list[int]
    truncated: list[bool]


class ChatMessage(Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class GenerateRequest(Invocation, frozen=True, tag="generate"):
    """Task `text_generation`: exactly one of `prompt` and `messages`.

    What is None takes the profile's value. `temperature` 0 is greedy. Generation ends before the first of the `stop`
    texts; the text returned does not hold it. With `stream`, `TextChunk`s come before the answer.

    A prompt that leaves no room for a token is refused, never cut. So is a `new_tokens_max` over the profile's, or over
    the room that the prompt leaves; where it is None, the text ends at that room with `length`. Without a `seed` one is
    made up, and told.
    """

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    new_tokens_max: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=10.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    seed: Seed | None = None
    stop: Annotated[list[str], Meta(max_length=16)] = []  # noqa: RUF012 - msgspec copies it for each struct
    stream: bool = False


class TextChunk(Struct, frozen=True, tag="text_chunk", forbid_unknown_fields=True):
    """A piece of text as it comes; the chunks of one invocation, joined by `number`, are the answer's text."""

    number: int
    text: str


class Generated(Struct, frozen=True, tag="generated", forbid_unknown_fields=True):
    """The whole text. `stop` is the model's own end or a stop text, `length` a bound, `cancelled` a cancel.

    `output_tokens` are those the model gave, its end token and the tokens of a stop text among them. `seed` is the one
    that was used; a greedy text has none.
    """

    text: str
    finish_reason: FinishReason
    input_tokens: int
    output_tokens: int
    seed: Seed | None = None
