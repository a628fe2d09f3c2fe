"""`tenure invoke` for every task: options become the request, others are refused, files are written with care."""

from __future__ import annotations

import array
import asyncio
import json
import signal
import wave
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from schemas import subjects
from schemas.codes import Code, Refusal
from schemas.serving import Answer, Cancel, Cancelled, Failure, ServeRequest
from schemas.tasks.audio import Audio, Segment, Spoken, Transcribed, TranscribeRequest
from schemas.tasks.image import Classified, ClassifyRequest, Imagined, ImagineRequest, OcrRequest, Recognised
from schemas.tasks.requests import Result
from schemas.tasks.text import ChatMessage, Embedded, Generated, GenerateRequest, Reranked, RerankRequest, TextChunk
from services.cli.context import Context
from services.cli.exits import INTERRUPTED, OK, REFUSED, USAGE
from services.cli.invoke.asking import TAKES, Said, audio_of, request_of
from services.cli.invoke.command import _streamed
from services.cli.invoke.embedding import BUSY_WAITS_MAX
from services.cli.screen.terminal import Terminal
from services.client import Client
from services.settings import Settings
from tests.fake_wire import ARTIFACT, PROFILE, FakeWire, deployment, node, residency
from tests.unit.test_cli_output import tenure, wire

__all__ = ["wire"]  # the fixture
SERVED = subjects.serve_subject("local", "3", "dep0123456789ab")


def serving(wire: FakeWire, task: str, result: Result) -> list[Any]:
    """A deployment of this task that gives this result; what it was asked, without what the client adds."""
    wire.put(node(), deployment(capability=task), residency())
    asked: list[Any] = []

    def answer(payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=ServeRequest)
        asked.append(msgspec.structs.replace(request, deadline_ms=None, invocation_id=None))
        return msgspec.msgpack.encode(Answer(result, ARTIFACT, PROFILE, "3", 1.5))

    wire.answers[SERVED] = answer
    return asked


def wav(path: Path, rate_hz: int = 8_000, channels: int = 2) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(b"\0\0" * channels * 10)
    return path


def test_rerank_shows_the_documents_best_first(wire: FakeWire) -> None:
    asked = serving(wire, "rerank", Reranked([0.1, 0.9], [1, 0], [3, 3], [False, True]))
    ran = tenure("invoke", "search", "--query", "which?", "no [b]", "yes")
    assert ran.exit_code == OK, ran.stderr
    assert asked == [RerankRequest("which?", ["no [b]", "yes"])]
    lines = [line for line in ran.stdout.splitlines() if "0." in line]
    assert ["yes" in lines[0], "no [b]" in lines[1]] == [True, True]


def test_generation_is_a_prompt_or_a_chat(wire: FakeWire) -> None:
    asked = serving(wire, "text_generation", Generated("the text", "stop", 1, 2))
    ran = tenure("invoke", "search", "hello", "--new-tokens", "5", "--stop", "x")
    assert ran.stdout == "the text\n"
    assert tenure("invoke", "search", "hello", "--system", "be kind").exit_code == OK
    first = GenerateRequest(prompt="hello", new_tokens_max=5, stop=["x"])
    second = GenerateRequest(messages=[ChatMessage("system", "be kind"), ChatMessage("user", "hello")])
    assert asked == [first, second]


def test_images_and_labels(wire: FakeWire, tmp_path: Path) -> None:
    picture = tmp_path / "cat.png"
    picture.write_bytes(b"picture")
    asked = serving(wire, "zero_shot_image", Classified([[0.2, 0.7]], [[1, 0]], [False, False], [[]]))
    ran = tenure("invoke", "search", "--image", str(picture), "--label", "dog", "--label", "cat")
    assert ran.exit_code == OK, ran.stderr
    assert asked == [ClassifyRequest([b"picture"], ["dog", "cat"])]
    assert ran.stdout.index("0.7000") < ran.stdout.index("0.2000")
    asked = serving(wire, "ocr", Recognised(["some text"], [4], [False], [["grey to RGB"]]))
    ran = tenure("invoke", "search", "--image", str(picture))
    assert asked == [OcrRequest([b"picture"])]
    assert "grey to RGB" in ran.stdout


def test_sound_says_its_rate_itself_or_is_told(wire: FakeWire, tmp_path: Path) -> None:
    path = wav(tmp_path / "a.wav")
    asked = serving(wire, "stt", Transcribed("hi", [Segment(0.0, 1.0, "hi")], 1.0, 1, False, ["mixed"]))
    ran = tenure("invoke", "search", "--audio", str(path), "--language", "en")
    assert ran.exit_code == OK, ran.stderr
    assert asked == [TranscribeRequest(Audio(path.read_bytes(), 8_000, 2, "file"), "en")]
    assert "mixed" in ran.stderr
    other = tmp_path / "a.flac"
    other.write_bytes(b"flac")
    assert tenure("invoke", "search", "--audio", str(other)).exit_code == USAGE
    assert audio_of(other, 16_000, None) == Audio(b"flac", 16_000, 1, "file")
    broken = tmp_path / "b.wav"
    broken.write_bytes(b"RIFF")
    with pytest.raises(Refusal, match="WAV"):
        audio_of(broken, None, None)


def test_speech_is_written_as_wave_and_nothing_is_replaced_unasked(wire: FakeWire, tmp_path: Path) -> None:
    samples = array.array("f", [0.0, 0.5, -2.0])
    serving(wire, "tts", Spoken(Audio(samples.tobytes(), 16_000), 3 / 16_000, 5, 0, ["to lower case"]))
    out = tmp_path / "said.wav"
    assert tenure("invoke", "search", "Hello", "--out", str(out)).exit_code == OK
    with wave.open(str(out)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 1, 3)
        assert array.array("h", file.readframes(3)).tolist() == [0, 16_383, -32_767]
    again = tenure("invoke", "search", "Hello", "--out", str(out))
    assert again.exit_code != OK
    assert "NAME_TAKEN" in again.stderr
    assert tenure("invoke", "search", "Hello", "--out", str(out), "--force").exit_code == OK


def test_a_request_file_is_the_request(wire: FakeWire, tmp_path: Path) -> None:
    asked = serving(wire, "image_generation", Imagined([b"png"], 64, 64, 2, 7, False))
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"type": "imagine", "prompt": "a door", "width": 64, "height": 64, "seed": 7}))
    ran = tenure("invoke", "search", "--request", str(file), "--json")
    assert ran.exit_code == OK, ran.stderr
    assert asked == [ImagineRequest("a door", width=64, height=64, seed=7)]
    assert json.loads(ran.stdout)["result"]["seed"] == 7
    file.write_text(json.dumps({"type": "ocr", "images": []}))
    assert "INPUT_INVALID" in tenure("invoke", "search", "--request", str(file)).stderr
    file.write_text("{")
    assert "INPUT_INVALID" in tenure("invoke", "search", "--request", str(file)).stderr


@pytest.mark.parametrize(
    ("task", "said", "option"),
    [
        ("ocr", Said(images=[Path("x")], texts=["words"]), "TEXT"),
        ("stt", Said(audio=Path("x"), seed=3), "--seed"),
        ("tts", Said(texts=["a"], language="en"), "--language"),
        ("rerank", Said(texts=["a"], query="q", new_tokens=4), "--new-tokens"),
        ("image_generation", Said(texts=["a"], rate_hz=8_000), "--rate"),
        ("rerank", Said(texts=["a"]), "--query"),
        ("text_generation", Said(), "TEXT"),
        ("text_generation", Said(texts=["a", "b"]), "TEXT"),
        ("zero_shot_image", Said(labels=["a"]), "--image"),
        ("ocr", Said(), "--image"),
        ("stt", Said(), "--audio"),
    ],
)
def test_what_the_task_has_no_use_for_or_lacks_is_named(task: str, said: Said, option: str) -> None:
    with pytest.raises(typer.BadParameter) as caught:
        request_of(task, said)
    assert caught.value.param_hint == option


def test_a_request_file_takes_a_deadline(wire: FakeWire, tmp_path: Path) -> None:
    serving(wire, "image_generation", Imagined([b"png"], 64, 64, 2, 7, False))
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"type": "imagine", "prompt": "a door", "deadline_ms": 9_000}))
    ran = tenure("invoke", "search", "--request", str(file), "--deadline-ms", "4000", "--json")
    assert ran.exit_code == OK, ran.stderr
    assert msgspec.msgpack.decode(dict(wire.sent)[SERVED], type=ServeRequest).deadline_ms == 4_000


def test_ctrl_c_ends_the_invocation_at_the_worker(wire: FakeWire) -> None:
    serving(wire, "rerank", Reranked([], [], [], []))
    asked: list[Any] = []

    async def interrupted(payload: bytes) -> bytes:
        request = msgspec.msgpack.decode(payload, type=ServeRequest)
        asked.append(request)
        if isinstance(request, Cancel):
            assert not wire.closed
            return msgspec.msgpack.encode(Cancelled(True))
        signal.raise_signal(signal.SIGINT)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    wire.answers[SERVED] = interrupted
    assert tenure("invoke", "search", "--query", "which?", "a").exit_code == INTERRUPTED
    assert asked[1:] == [Cancel(asked[0].invocation_id)]


async def test_a_text_that_cannot_be_shown_is_cancelled_at_once(
    wire: FakeWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving(wire, "text_generation", Generated("", "stop", 1, 2))
    wire.streams[SERVED] = [msgspec.msgpack.encode(TextChunk(0, "word "))]

    class Gone:
        def write(self, text: str) -> int:
            raise BrokenPipeError

    client = Client(wire, "tester")
    context = Context(client, Terminal(), Settings())
    monkeypatch.setattr("sys.stdout", Gone())
    row, request = deployment(capability="text_generation"), GenerateRequest(prompt="p", stream=True)
    with pytest.raises(BrokenPipeError) as caught:  # which holds on to what raised it
        await _streamed(context, row, request, None)
    sent = [msgspec.msgpack.decode(body, type=ServeRequest) for subject, body in wire.sent if subject == SERVED]
    assert isinstance(sent[-1], Cancel), caught
    await client.close()


def test_many_texts_wait_for_a_queue_that_fills_in_between(wire: FakeWire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.invoke.embedding.BUSY_WAIT_S", 0.0)
    wire.put(node(), deployment(), residency())
    busy = msgspec.msgpack.encode(Failure(Code.OVERLOADED, "full"))
    vectors = [Embedded(bytes(4 * rows), rows, 1, [1] * rows, [False] * rows) for rows in (64, 1)]
    first, last = (msgspec.msgpack.encode(Answer(each, ARTIFACT, PROFILE, "3", 1.0)) for each in vectors)
    replies = [first, busy, busy, last]
    wire.answers[SERVED] = lambda payload: replies.pop(0)
    ran = tenure("invoke", "search", *(f"text {number}" for number in range(65)), "--json")
    assert ran.exit_code == OK, ran.stderr
    assert len(json.loads(ran.stdout)["embeddings"]) == 65
    replies = [busy, first]
    assert tenure("invoke", "search", "a text").exit_code == REFUSED  # nothing is lost: said at once
    replies = [first, *[busy] * 100]
    assert tenure("invoke", "search", *(f"text {number}" for number in range(65))).exit_code == REFUSED
    assert len(replies) == 100 - BUSY_WAITS_MAX - 1


def test_a_golden_answer_has_a_place_before_it_is_asked_for(wire: FakeWire, tmp_path: Path) -> None:
    asked = serving(wire, "image_generation", Imagined([b"png"], 64, 64, 2, 7, False))
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"type": "imagine", "prompt": "a door"}))
    out = tmp_path / "gone" / "golden.json"
    ran = tenure("golden", "record", "search", "door", "--request", str(file), "--out", str(out))
    assert (ran.exit_code, asked) == (REFUSED, [])


def test_values_out_of_range_are_usage_errors() -> None:
    with pytest.raises(typer.BadParameter, match="temperature"):
        request_of("text_generation", Said(texts=["a"], temperature=-1.0))
    with pytest.raises(typer.BadParameter, match="seed"):
        request_of("tts", Said(texts=["a"], seed=-1))


def test_every_task_but_embedding_has_its_options() -> None:
    from schemas.tasks.requests import REQUEST_OF

    assert TAKES.keys() == REQUEST_OF.keys() - {"embedding"}
