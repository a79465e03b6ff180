"""
A client that does anything, legal or not, in any order, against a live server; the checker watches.

The seed is printed, and `--fuzz-seed SEED` repeats the same client. What the server makes of its timing may
differ, so a failure names the steps as well.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from websockets.exceptions import ConnectionClosed

from tests.conformance.recorder import Event, Recorder, Server
from tests.conformance.speech import LONG, SHORT, silence, speech
from tests.conformance.vocabulary import CLIENT_EVENTS

T = TypeVar("T")
EXAMPLES, STEPS = 80, 30
"""About 40 seconds."""
MOST_READ = 20
ENDING = ("session.close", "session.resume")

texts = st.text(max_size=20)
numbers = st.one_of(
    st.integers(-5, 10_000), st.floats(allow_nan=False, allow_infinity=False, width=32), st.none()
)
ids = st.sampled_from(["", "item_1", "nobody", "root", "x" * 200])
plain = st.one_of(texts, numbers, st.booleans(), ids)
values: st.SearchStrategy[Any] = st.recursive(
    plain,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
FIELDS = [
    "audio",
    "event_id",
    "item_id",
    "item",
    "response",
    "response_id",
    "content_index",
    "audio_end_ms",
    "played_ms",
]
FIELDS += [
    "session",
    "text",
    "event",
    "previous_item_id",
    "final",
    "create_response",
    "server_event_seq",
    "format",
]
items = st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "function_call_output", "nothing"])},
    optional={
        "id": ids,
        "role": st.sampled_from(["user", "assistant", "system", "nobody"]),
        "content": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["input_text", "output_text", "text"]), "text": texts}
            ),
            max_size=2,
        ),
        "call_id": ids,
        "name": texts,
        "arguments": texts,
        "output": texts,
    },
)


class RandomClient(RuleBasedStateMachine):
    """One session of a client without manners. Each step sends something or reads what is there."""

    server: ClassVar[Server]
    loop: ClassVar[asyncio.AbstractEventLoop]

    def __init__(self) -> None:
        super().__init__()
        self.client = Recorder(self.server)
        self.items: list[str] = []

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a step to its end."""
        return self.loop.run_until_complete(work)

    @initialize(duplex=st.booleans(), vad=st.booleans(), auto=st.booleans())
    def open(self, duplex: bool, vad: bool, auto: bool) -> None:
        """Open either way."""
        if duplex:
            self.do(self.client.open_duplex(extra_body={"auto_response": auto}))
        else:
            self.do(self.client.open())
        self.do(self.client.listen({"type": "server_vad", "create_response": auto} if vad else None))
        self.do(self.client.update(tools=[{"type": "function", "name": "f"}]))

    @rule(clip=st.sampled_from([SHORT, LONG]), silence_ms=st.sampled_from([0, 200, 900]))
    def speak(self, clip: str, silence_ms: int) -> None:
        """Say something."""
        self.do(self.client.say(speech(clip, silence_ms=silence_ms)))

    @rule(duration_ms=st.sampled_from([0, 40, 100, 1000]))
    def be_silent(self, duration_ms: int) -> None:
        """Send silence."""
        self.do(self.client.append(silence(duration_ms)))

    @rule(
        kind=st.sampled_from(["input_audio_buffer.commit", "input.commit"]),
        flag=st.sampled_from([None, True, False]),
    )
    def commit(self, kind: str, flag: bool | None) -> None:
        """Commit."""
        self.do(self.client.send(kind, create_response=flag))

    @rule(text=st.sampled_from(["Good morning, how are you?", "Hm.", 'say Oh; call f {"a": 1}; say yes']))
    def write(self, text: str) -> None:
        """Put a text into the conversation and have it answered."""
        content = [{"type": "input_text", "text": text}]
        self.do(
            self.client.send(
                "conversation.item.create", item={"type": "message", "role": "user", "content": content}
            )
        )
        self.do(self.client.send("response.create"))

    @rule(
        kind=st.sampled_from(
            sorted({"response.cancel", "output_audio_buffer.clear", "barge_in", "input.cancel"})
        )
    )
    def stop(self, kind: str) -> None:
        """Interrupt."""
        self.do(self.client.send(kind))

    @rule(data=st.data(), at_ms=st.sampled_from([0, 100, 700, 99_999]))
    def handle_an_item(self, data: st.DataObject, at_ms: int) -> None:
        """Cut, show or delete an item that there is, or was."""
        known = sorted({event["item"]["id"] for event in self.client.of("conversation.item.added")}) or [
            "nobody"
        ]
        number = data.draw(st.integers(0, 50), label="item")
        verb = data.draw(st.sampled_from(["truncate", "retrieve", "delete"]), label="verb")
        cut = {"content_index": 0, "audio_end_ms": at_ms} if verb == "truncate" else {}
        self.do(self.client.send(f"conversation.item.{verb}", item_id=known[number % len(known)], **cut))

    @rule(item=items, after=st.sampled_from([None, "root", "nobody"]))
    def create_any_item(self, item: Event, after: str | None) -> None:
        """Create an item, good or bad."""
        self.do(self.client.send("conversation.item.create", item=item, previous_item_id=after))

    @rule(
        kind=st.sampled_from(sorted(set(CLIENT_EVENTS) - set(ENDING))),
        fields=st.dictionaries(st.sampled_from(FIELDS), values, max_size=4),
    )
    def send_anything(self, kind: str, fields: Event) -> None:
        """Send an event of the contract with fields of any kind."""
        fields = msgspec.json.decode(msgspec.json.encode(fields))
        self.do(self.client.send(kind, **fields))

    @rule(data=st.binary(max_size=40), kind=st.sampled_from(["text", "binary", "audio"]))
    def send_garbage(self, data: bytes, kind: str) -> None:
        """Send what is no event."""
        frame: str | bytes = data if kind == "binary" else data.decode("latin-1")
        if kind == "audio":
            encoded = base64.b64encode(data).decode()[:-1]
            frame = msgspec.json.encode({"type": "input_audio_buffer.append", "audio": encoded}).decode()
        self.do(self.client.raw(frame))

    @rule(most=st.integers(1, MOST_READ))
    def read(self, most: int) -> None:
        """Read what is there, up to a number of events."""

        async def some() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.15):
                    for _ in range(most):
                        await self.client.next()

        self.do(some())

    @precondition(lambda self: self.client.token)
    @rule(other=st.booleans())
    def drop_and_resume(self, other: bool) -> None:
        """Lose the connection and come back, through any gateway."""
        self.do(self.client.drop())
        answer = self.do(self.client.resume(self.server.other_url if other else self.server.url))
        assert answer["type"] in ("session.resumed", "session.created"), answer

    def teardown(self) -> None:
        """The server still handles events, and everything that it said was in order."""
        if self.client.connection is None:
            return
        try:
            assert self.do(self.client.is_alive())
            self.do(self.client.close())
        except ConnectionClosed as error:
            raise AssertionError("the server closed the socket") from error
        assert [] == self.client.wrong()


@pytest.fixture
def own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop for a test that runs in none."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_a_client_without_manners(
    request: pytest.FixtureRequest, server: Server, own_loop: asyncio.AbstractEventLoop
) -> None:
    """
    Whatever a client sends, the server answers in order.

    Keeps the socket open and never mixes things up.
    """
    number = request.config.getoption("--fuzz-seed", default=None)
    if number is None:
        number = random.SystemRandom().randrange(1 << 32)
    print(f"repeat with --fuzz-seed {number}")

    class Client(RandomClient):
        """The same for this server."""

    Client.server, Client.loop = server, own_loop
    run_state_machine_as_test(
        seed(number)(Client),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=False,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
