"""What of a request can be refused before the model sees it: its kind, its size, and what the profile doesn't allow.

Items are what a batch is made of (texts, documents, images, labels are no items); characters are of all its texts.
Pixels and seconds are known only by looking into the data: the adapter does that, before it decodes.
"""

from __future__ import annotations

from schemas.codes import Code, Refusal
from schemas.profiles import RuntimeProfile
from schemas.tasks.audio import SpeakRequest, TranscribeRequest
from schemas.tasks.image import ClassifyRequest, EmbedImagesRequest, ImagineRequest, OcrRequest
from schemas.tasks.requests import REQUEST_OF, Request
from schemas.tasks.text import EmbedRequest, GenerateRequest, RerankRequest


def items_of(request: Request) -> int:
    match request:
        case EmbedRequest():
            return len(request.texts)
        case RerankRequest():
            return len(request.documents)
        case OcrRequest() | ClassifyRequest():
            return len(request.images)
        case EmbedImagesRequest():
            return len(request.images) + len(request.texts)
        case ImagineRequest():
            return request.count
        case GenerateRequest() | TranscribeRequest() | SpeakRequest():
            return 1


def characters_of(request: Request) -> int:
    return sum(map(len, _texts(request)))


def _texts(request: Request) -> list[str]:
    match request:
        case EmbedRequest() | EmbedImagesRequest():
            return request.texts
        case RerankRequest():
            return [request.query, *request.documents]
        case ClassifyRequest():
            return request.labels
        case ImagineRequest():
            return [request.prompt, request.negative_prompt]
        case GenerateRequest():
            return [request.prompt or "", *(message.content for message in request.messages or [])]
        case SpeakRequest():
            return [request.text]
        case OcrRequest() | TranscribeRequest():
            return []


def check(request: Request, profile: RuntimeProfile) -> None:
    """Raises Refusal with what is wrong with this request for this profile."""
    wanted = REQUEST_OF.get(profile.task)
    if wanted is None or not isinstance(request, wanted):
        kind = wanted.__name__ if wanted else "nothing"
        raise Refusal(Code.INPUT_INVALID, f"this deployment does `{profile.task}` and takes {kind}")
    limits = profile.limits
    items = items_of(request)
    if items > limits.items_max:
        raise Refusal(Code.INPUT_TOO_LARGE, f"{items} items; the profile allows {limits.items_max}")
    characters = characters_of(request)
    if characters > limits.characters_max:
        raise Refusal(Code.INPUT_TOO_LARGE, f"{characters} characters; the profile allows {limits.characters_max}")
    if isinstance(request, EmbedRequest) and request.prompt_name not in {None, *profile.prompts}:
        known = ", ".join(sorted(profile.prompts)) or "none"
        raise Refusal(Code.INPUT_INVALID, f"there is no prompt `{request.prompt_name}`; there are: {known}")
    if isinstance(request, GenerateRequest) and (request.prompt is None) == (request.messages is None):
        raise Refusal(Code.INPUT_INVALID, "say either `prompt` or `messages`")
