"""All requests and results, and which task takes which."""

from __future__ import annotations

from schemas.tasks.audio import SpeakRequest, Spoken, Transcribed, TranscribeRequest
from schemas.tasks.image import (
    Classified,
    ClassifyRequest,
    EmbedImagesRequest,
    ImagesEmbedded,
    Imagined,
    ImagineRequest,
    OcrRequest,
    Recognised,
)
from schemas.tasks.text import Embedded, EmbedRequest, Generated, GenerateRequest, Reranked, RerankRequest

Request = (
    EmbedRequest
    | RerankRequest
    | GenerateRequest
    | OcrRequest
    | EmbedImagesRequest
    | ClassifyRequest
    | ImagineRequest
    | TranscribeRequest
    | SpeakRequest
)
Result = Embedded | Reranked | Generated | Recognised | ImagesEmbedded | Classified | Imagined | Transcribed | Spoken

REQUEST_OF: dict[str, type[Request]] = {
    "embedding": EmbedRequest,
    "rerank": RerankRequest,
    "text_generation": GenerateRequest,
    "ocr": OcrRequest,
    "image_embedding": EmbedImagesRequest,
    "zero_shot_image": ClassifyRequest,
    "image_generation": ImagineRequest,
    "stt": TranscribeRequest,
    "tts": SpeakRequest,
}
RESULT_OF: dict[str, type[Result]] = {
    "embedding": Embedded,
    "rerank": Reranked,
    "text_generation": Generated,
    "ocr": Recognised,
    "image_embedding": ImagesEmbedded,
    "zero_shot_image": Classified,
    "image_generation": Imagined,
    "stt": Transcribed,
    "tts": Spoken,
}
