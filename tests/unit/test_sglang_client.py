"""The generation client: exactly as many requests as the server takes, each answered once."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.engines.base import Answer, Refused, Request
from aerie.engines.sglang import client as client_module
from aerie.engines.sglang.client import Endpoint, Reply, payload, read_reply
from aerie.engines.sglang.stream import SglangStream
from aerie.engines.sglang.stream import ask as ask_all
from aerie.errors import EngineError
from tests.generate_double import Fault, GenerateDouble, hashed_answer

END = [2]


@dataclass(frozen=True)
class Settings:
    concurrency: int = 4
    request_timeout_s: float = 120.0
    tries: int = 5


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_FIRST_WAIT", 0.001)


@dataclass
class Questions:
    """Work: `count` requests, and a second one after each answer to a name that ends with `0`."""

    count: int
    slow: float = 0.0
    outcomes: dict[str, Answer | Refused] = field(default_factory=dict)
    taken: int = 0
    flights: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._waiting = [f"r{number}" for number in range(self.count)]

    def take(self, count: int) -> list[tuple[str, Request]]:
        names, self._waiting = self._waiting[:count], self._waiting[count:]
        self.taken += len(names)
        return [(name, request(name)) for name in names]

    def settle(self, outcomes: Sequence[tuple[str, Answer | Refused]], in_flight: int) -> None:
        time.sleep(self.slow)
        self.flights.append(in_flight)
        for name, outcome in outcomes:
            assert name not in self.outcomes
            self.outcomes[name] = outcome
            if name.endswith("0"):
                self._waiting.append(f"{name}.then")


def request(name: str) -> Request:
    return Request(list(name.encode()), 6, 1.0, 0.9, len(name))


def right(name: str) -> Answer:
    ids = hashed_answer(payload(name, request(name), END))[:6]
    return Answer(ids, "stop" if ids[-1] == 2 else "length")


def names_of(count: int) -> set[str]:
    first = {f"r{number}" for number in range(count)}
    return first | {f"{name}.then" for name in first if name.endswith("0")}


def ask(
    double: GenerateDouble, count: int, *others: Endpoint, concurrency: int = 4
) -> dict[str, Answer | Refused]:
    work = Questions(count)
    SglangStream([double, *others], Settings(concurrency), END).stream(work)
    assert set(work.outcomes) == names_of(count)
    return work.outcomes


def test_body_says_all_that_decides_the_answer() -> None:
    body = payload("x", Request([1, 2], 9, 0.7, 0.95, 2**62), END)
    assert body["input_ids"] == [1, 2] and body["rid"] == "x"
    assert "text" not in body and "return_hidden_states" not in body
    sampling = body["sampling_params"]
    assert sampling["sampling_seed"] == 2**62
    assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.7, 0.95, -1)
    assert (sampling["max_new_tokens"], sampling["stop_token_ids"]) == (9, END)
    greedy = payload("x", Request([1, 2], 9, 0.0, 1.0, 5), END)["sampling_params"]
    assert "sampling_seed" not in greedy


@pytest.mark.parametrize("concurrency", [1, 3, 8])
def test_exactly_so_many_requests_are_in_flight(concurrency: int) -> None:
    # None of the first 40 is answered unless so many are in flight: with fewer, they time out.
    with GenerateDouble(rendezvous=concurrency, total=40) as double:
        outcomes = ask(double, 40, concurrency=concurrency)
        assert double.seen.most == concurrency
        assert len(double.seen.bodies) == len(outcomes)
    assert outcomes == {name: right(name) for name in names_of(40)}


def test_default_concurrency_is_reached() -> None:
    with GenerateDouble(rendezvous=128, total=160) as double:
        assert len(ask(double, 160, concurrency=128)) == 176
        assert double.seen.most == 128
        assert len(double.seen.bodies) == 176


def test_no_more_requests_wait_for_a_seat_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reply wakes whatever waits: of 22,000 waiting, 90 a second were answered."""
    active = most = 0
    plain = client_module.Client.reply

    async def counted(client: client_module.Client, name: str, asked: Request) -> Reply | Refused:
        nonlocal active, most
        active += 1
        most = max(most, active)
        try:
            return await plain(client, name, asked)
        finally:
            active -= 1

    monkeypatch.setattr(client_module.Client, "reply", counted)
    with GenerateDouble() as double:
        requests = [request(f"r{number}") for number in range(40)]
        replies = ask_all(requests, [double], Settings(), END)
    assert [reply.output_ids for reply in replies] == [
        right(f"r{number}").output_ids for number in range(40)
    ]
    assert most == Settings.concurrency


FAULTS: list[int | Fault] = [
    *(408, 425, 429, 500, 502, 503, 504),
    *("drop", "wrong_id", "wrong_count", "no_ids", "abort", "not_json"),
]


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(sorted(names_of(20))), st.integers(1, 4)),
        st.sampled_from(FAULTS),
        max_size=40,
    ),
    st.integers(0, 2**32),
)
def test_faults_change_no_answer(faults: dict[tuple[str, int], int | Fault], order: int) -> None:
    def delay(name: str, attempt: int) -> float:
        return random.Random(f"{order} {name} {attempt}").random() / 100

    with GenerateDouble(fault=lambda *at: faults.get(at), delay=delay) as double:
        outcomes = ask(double, 20)
        assert sorted(double.seen.answered) == sorted(names_of(20))
    assert outcomes == {name: right(name) for name in names_of(20)}


def test_every_retry_has_its_own_id() -> None:
    with GenerateDouble(fault=lambda name, attempt: 503 if attempt < 4 else None) as double:
        ask(double, 3)
        rids = [body["rid"] for body in double.seen.bodies]
    assert len(set(rids)) == len(rids) == 4 * len(names_of(3))


def test_what_the_server_does_not_take_is_asked_once() -> None:
    with GenerateDouble(fault=lambda name, attempt: 400 if name == "r3" else None) as double:
        outcomes = ask(double, 12)
        assert [body["rid"] for body in double.seen.bodies].count("r3-1") == 1
    refused = outcomes.pop("r3")
    assert isinstance(refused, Refused) and "HTTP 400" in refused.why
    assert outcomes == {name: right(name) for name in names_of(12) - {"r3"}}


def test_what_always_fails_is_given_up() -> None:
    with GenerateDouble(fault=lambda name, attempt: 500 if name == "r3" else None) as double:
        outcomes = ask(double, 12)
        assert sum(body["rid"].startswith("r3-") for body in double.seen.bodies) == 5
    refused = outcomes["r3"]
    assert isinstance(refused, Refused) and "failed 5 times" in refused.why


def test_slow_answers_time_out() -> None:
    def delay(name: str, attempt: int) -> float:
        return 5.0 if (name, attempt) == ("r1", 1) else 0.0

    work = Questions(6)
    with GenerateDouble(delay=delay) as double:
        SglangStream([double], Settings(request_timeout_s=0.5), END).stream(work)
    assert work.outcomes == {name: right(name) for name in names_of(6)}


def test_only_open_requests_are_asked_again_after_a_death() -> None:
    deadly = {("r5", 1), ("r11", 1), ("r17", 1)}

    def fault(name: str, attempt: int) -> Fault | None:
        return "die" if (name, attempt) in deadly else None

    with GenerateDouble(fault=fault, delay=lambda *_: 0.002) as double:
        outcomes = ask(double, 30)
        assert double.deaths == 3
        assert len(double.seen.bodies) <= len(names_of(30)) + 3 * 4
    assert outcomes == {name: right(name) for name in names_of(30)}


@pytest.mark.parametrize("concurrency", [1, 4, 32])
def test_the_request_that_kills_the_server_is_found(concurrency: int) -> None:
    with GenerateDouble(
        fault=lambda name, attempt: "die" if name == "r7" else None, delay=lambda *_: 0.005
    ) as double:
        outcomes = ask(double, 100, concurrency=concurrency)
        assert 3 <= double.deaths <= 4
    refused = outcomes.pop("r7")
    assert isinstance(refused, Refused) and "alone" in refused.why
    assert outcomes == {name: right(name) for name in names_of(100) - {"r7"}}


def test_servers_share_the_load() -> None:
    with GenerateDouble(delay=lambda *_: 0.005) as first, GenerateDouble() as second:
        second.delay = first.delay
        ask(first, 100, second)
        shares = [len(double.seen.bodies) for double in (first, second)]
    assert sum(shares) == 110 and min(shares) > 30


class Mortal:
    """An endpoint that cannot be brought back."""

    def __init__(self, double: GenerateDouble) -> None:
        self._double = double

    @property
    def url(self) -> str:
        return self._double.url

    def revive(self) -> bool:
        raise EngineError("the server died", saw="out of memory")


def test_the_others_go_on_without_a_lost_server() -> None:
    with GenerateDouble(fault=lambda name, attempt: "die") as lost, GenerateDouble() as double:
        assert ask(double, 40, Mortal(lost)) == {name: right(name) for name in names_of(40)}


def test_a_lost_server_stops_the_job() -> None:
    with (
        GenerateDouble(fault=lambda name, attempt: "die") as lost,
        pytest.raises(EngineError, match="out of memory"),
    ):
        SglangStream([Mortal(lost)], Settings(), END).stream(Questions(40))


def test_a_server_that_refuses_everything_stops_the_job() -> None:
    work = Questions(10_000)
    with (
        GenerateDouble(fault=lambda name, attempt: 400) as double,
        pytest.raises(EngineError, match="refused all"),
    ):
        SglangStream([double], Settings(), END).stream(work)
    assert work.taken < 100


def test_a_slow_writer_holds_requests_back() -> None:
    held, blocked = threading.Event(), threading.Event()

    class Slow(Questions):
        def settle(self, outcomes: Sequence[tuple[str, Answer | Refused]], in_flight: int) -> None:
            blocked.set()
            held.wait()
            super().settle(outcomes, in_flight)

    with GenerateDouble() as double:
        work = Slow(500)
        stream = SglangStream([double], Settings(), END)
        thread = threading.Thread(target=stream.stream, args=(work,))
        thread.start()
        blocked.wait()
        time.sleep(0.5)
        reached = len(double.seen.bodies)
        held.set()
        thread.join()
    # One settled, up to four kept back, four that wait with their answer.
    assert reached <= 4 + 4 + 4
    assert set(work.outcomes) == names_of(500)


META: dict[str, Any] = {
    "id": "a",
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "finish_reason": {"type": "stop"},
}


def test_finish_reason_is_honoured() -> None:
    ask = Request([1], 2, 0.0, 1.0, 0)
    meta = dict(META)
    body: dict[str, Any] = {"output_ids": [5, 2], "meta_info": meta}
    assert read_reply(body, "a", ask, 0.5) == Reply([5, 2], "stop", meta, 0.5)
    meta["finish_reason"] = {"type": "length", "length": 2}
    assert read_reply(body, "a", ask, 0.5).answer == Answer([5, 2], "length")
    for wrong in (None, {"type": "abort"}, "stop"):
        meta["finish_reason"] = wrong
        with pytest.raises((ValueError, TypeError)):
            read_reply(body, "a", ask, 0.5)


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        {"output_ids": None, "meta_info": META},
        {"output_ids": ["5", 2], "meta_info": META},
        {"output_ids": [5, 2], "meta_info": META | {"id": "b"}},
        {"output_ids": [5, 2], "meta_info": META | {"prompt_tokens": 2}},
        {"output_ids": [5, 2, 2], "meta_info": META | {"completion_tokens": 3}},
        {"output_ids": [], "meta_info": META | {"completion_tokens": 0}},
    ],
)
def test_what_is_no_answer_to_the_request_is_not_taken(body: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_reply(body, "a", Request([1], 2, 0.0, 1.0, 0), 0.5)


def test_replies_come_in_the_order_of_the_requests() -> None:
    names = [f"r{number}" for number in range(40)]
    with GenerateDouble(delay=lambda name, _: random.Random(name).random() / 100) as double:
        replies = ask_all([request(name) for name in names], [double], Settings(), END)
        assert double.seen.most == 4
    assert [reply.answer for reply in replies] == [right(name) for name in names]
    assert all(reply.meta["completion_tokens"] == len(reply.output_ids) for reply in replies)
    assert all(reply.latency_s > 0 for reply in replies)
    with (
        GenerateDouble(fault=lambda name, _: 400 if name == "ask7" else None) as double,
        pytest.raises(EngineError, match="ask7"),
    ):
        ask_all([request(name) for name in names], [double], Settings(), END)
