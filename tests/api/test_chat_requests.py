"""What a chat becomes for the engine: prompt, sampling, limits, thinking, constraint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.api.conftest import AppMaker
from tests.support.asgi_call import call, chat_body
from tests.support.byte_vocabulary import THINK
from tests.support.fake_engine import BOS, THINKING_TEMPLATE, ByteVocabulary, FakeEngine
from tests.support.shared_data import shared_data

from selfserve.config import ModelInfo
from selfserve.request import Ready, Request, SamplingParams

Ask = Callable[..., Request]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture
def ask(app: ASGIApp, engine: FakeEngine) -> Ask:
    """Sends a chat and gives the request that the engine got."""

    def send(**fields: Any) -> Request:
        answered = call(app, chat_body(**fields))
        assert answered.status == 200, answered.text
        return engine.requests[-1]

    return send


def without_seed(sampling: SamplingParams) -> dict[str, Any]:
    return {f: getattr(sampling, f) for f in sampling.__struct_fields__ if f != "seed"}


def test_a_request_that_says_nothing_gets_the_documented_defaults(ask: Ask) -> None:
    request = ask()
    assert without_seed(request.sampling) == without_seed(SamplingParams(penalize_answer_only=True))
    assert request.max_tokens is None
    assert request.stop == ()
    assert request.constraint is None
    assert (request.slot, request.cache_prompt, request.time_limit_ms) == (-1, True, 0)
    assert not request.timings_per_token
    assert not request.return_progress


SAID: dict[str, Any] = {
    "temperature": 0,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 2,
    "top_k": 5,
    "top_p": 0.5,
    "min_p": 0,
    "top_n_sigma": 1.5,
    "typical_p": 0.9,
    "min_keep": 3,
    "repeat_penalty": 1.1,
    "repeat_last_n": -1,
    "presence_penalty": 1.5,
    "frequency_penalty": -1,
    "dry_multiplier": 0.8,
    "dry_base": 2,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 0,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "mirostat": 2,
    "mirostat_tau": 4,
    "mirostat_eta": 0.2,
    "ignore_eos": True,
    "seed": 0,
}


@pytest.mark.parametrize("name", SAID)
def test_each_sampling_field_reaches_the_engine(ask: Ask, name: str) -> None:
    sampling = ask(**{name: SAID[name]}).sampling
    assert getattr(sampling, name) == SAID[name]
    others = without_seed(sampling)
    others.pop(name, None)
    defaults = without_seed(SamplingParams(penalize_answer_only=True))
    defaults.pop(name, None)
    assert others == defaults


def test_what_the_model_recommends_stands_between_request_and_defaults(
    make_app: Callable[..., ASGIApp], engine: FakeEngine
) -> None:
    recommended = {"temperature": 1.0, "top_k": 20, "min_p": 0.0}
    app = make_app(ModelInfo(id="m", sampling=recommended))
    call(app, chat_body(top_k=0))
    sampling = engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_k, sampling.min_p) == (1.0, 0, 0.0)
    assert sampling.top_p == 0.95


def test_off_values_are_written_in_one_way(ask: Ask) -> None:
    assert ask(top_k=-1).sampling.top_k == 0
    assert ask(dry_base=0.5).sampling.dry_base == 1.75
    assert ask(dry_sequence_breakers=["", "x"]).sampling.dry_sequence_breakers == ("x",)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["top_k", "top_k", "temp"], ("top_k", "top_k", "temperature")),
        (["typical_p", "top-p"], ("typ_p", "top_p")),
        ("edskypmxt", SamplingParams().samplers),
        ("tk", ("temperature", "top_k")),
        ([], ()),
        ("", ()),
    ],
)
def test_samplers_keep_order_and_choice(ask: Ask, given: Any, names: tuple[str, ...]) -> None:
    assert ask(samplers=given).sampling.samplers == names


@pytest.mark.parametrize(
    ("given", "biases"),
    [
        ({"65": -1}, {65: -1.0}),
        ({"0" * 50 + "65": -1}, {65: -1.0}),
        ({"-a": 1}, {45: 1.0, 97: 1.0}),
        ({"1.5": 1}, {49: 1.0, 46: 1.0, 53: 1.0}),
        ({"AB": 2}, {65: 2.0, 66: 2.0}),
        ([["65", 2]], {54: 2.0, 53: 2.0}),
        ([[65, False]], {65: -float("inf")}),
        ([[65, 1], ["A", 0.5]], {65: 1.5}),
        ([[65, 1], [65, False], [65, 1]], {65: -float("inf")}),
        ({"": 5}, {}),
        ({"65": 1e300}, {65: 1e6}),
    ],
)
def test_biases_are_resolved_to_tokens(ask: Ask, given: Any, biases: dict[int, float]) -> None:
    assert dict(ask(logit_bias=given).sampling.logit_bias) == biases


def test_the_first_limit_wins(ask: Ask) -> None:
    assert ask(max_tokens=5).max_tokens == 5
    assert ask(max_completion_tokens=7).max_tokens == 7
    assert ask(max_tokens=5, max_completion_tokens=7).max_tokens == 7
    assert ask(max_tokens=5, max_completion_tokens=None).max_tokens == 5


@pytest.mark.parametrize(
    ("given", "stops"),
    [("x", ("x",)), (["a", "b"], ("a", "b")), ("", ()), (["", "a", ""], ("a",)), (None, ())],
)
def test_stops_are_strings_without_empty_ones(ask: Ask, given: Any, stops: Any) -> None:
    assert ask(stop=given).stop == stops


def test_engine_fields_are_handed_over(ask: Ask) -> None:
    request = ask(
        id_slot=1,
        cache_prompt=False,
        t_max_predict_ms=500,
        timings_per_token=True,
        return_progress=True,
        stream=True,
    )
    assert (request.slot, request.cache_prompt, request.time_limit_ms) == (1, False, 500)
    assert request.timings_per_token
    assert request.return_progress


def test_requests_have_ids_of_their_own(ask: Ask) -> None:
    assert len({ask().id for _ in range(5)}) == 5


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("writes_bos", [True, False])
def test_a_prompt_has_one_bos_at_most(
    engine: FakeEngine, make_app: Callable[..., ASGIApp], add_bos: bool, writes_bos: bool
) -> None:
    template = "{{ bos_token }}" * writes_bos + "{% for m in messages %}{{ m.content }}{% endfor %}"
    engine.vocabulary = ByteVocabulary(template, add_bos=add_bos)
    call(make_app(), chat_body())
    prompt = engine.requests[-1].prompt
    assert prompt.count(BOS) == int(add_bos or writes_bos)
    assert prompt[-2:] == tuple(b"hi")


FORMS = [
    {"grammar": 'root ::= "a"'},
    {"json_schema": SCHEMA},
    {"json_schema": {}},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "name": "x"}}},
]


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_the_form_of_the_answer_becomes_a_constraint(ask: Ask, form: dict[str, Any]) -> None:
    assert ask(**form).constraint is not None


def test_one_schema_gives_one_constraint(ask: Ask) -> None:
    by_format = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
    assert ask(json_schema=SCHEMA).constraint == ask(response_format=by_format).constraint


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"grammar": 'root := "a"'}, "grammar"),
        ({"json_schema": {"type": "string", "pattern": "("}}, "json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 5}}}},
            "response_format.json_schema.schema",
        ),
    ],
    ids=["grammar", "json_schema", "response_format"],
)
def test_forms_that_cannot_be_compiled_get_400_before_anything_runs(
    app: ASGIApp, engine: FakeEngine, form: dict[str, Any], param: str, stream: bool
) -> None:
    refused = call(app, chat_body(stream=stream, **form))
    assert refused.status == 400
    assert str(refused.error["param"]).startswith(param)
    assert engine.requests == []


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_must_leave_room_for_a_token(
    app: ASGIApp, engine: FakeEngine, stream: bool
) -> None:
    call(app, chat_body())
    length = len(engine.requests[-1].prompt)
    for context, status in ((length + 1, 200), (length, 400), (length - 1, 400)):
        engine.ready = Ready(context_size=context, num_slots=1, can_shift=False)
        answered = call(app, chat_body(stream=stream))
        assert answered.status == status
    assert answered.error["code"] == "context_length_exceeded"
    assert answered.error["type"] == "invalid_request"
    assert answered.error["n_prompt_tokens"] == length
    assert answered.error["n_ctx"] == length - 1


class TestThinking:
    @pytest.fixture
    def app(self, engine: FakeEngine, make_app: AppMaker) -> ASGIApp:
        engine.vocabulary = ByteVocabulary(THINKING_TEMPLATE)
        return make_app()

    @pytest.mark.parametrize(
        ("fields", "is_open", "budget"),
        [
            ({}, True, None),
            ({"reasoning_effort": "none"}, False, None),
            ({"reasoning_effort": "minimal"}, True, 128),
            ({"reasoning_effort": "low"}, True, 512),
            ({"reasoning_effort": "medium"}, True, 2048),
            ({"reasoning_effort": "high"}, True, 8192),
            ({"reasoning_effort": "xhigh"}, True, None),
            ({"chat_template_kwargs": {"enable_thinking": False}}, False, None),
            ({"chat_template_kwargs": {"enable_thinking": True}}, True, None),
            ({"chat_template_kwargs": {"enable_thinking": None}}, True, None),
            (
                {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"},
                True,
                None,
            ),
            (
                {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
                False,
                None,
            ),
            (
                {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"},
                True,
                512,
            ),
        ],
        ids=repr,
    )
    def test_switch_and_effort_decide(
        self, ask: Ask, fields: dict[str, Any], is_open: bool, budget: int | None
    ) -> None:
        reasoning = ask(**fields).reasoning
        assert reasoning is not None
        assert (reasoning.open, reasoning.budget) == (is_open, budget)

    def test_a_model_may_think_only_when_asked(
        self, engine: FakeEngine, make_app: Callable[..., ASGIApp]
    ) -> None:
        engine.vocabulary = ByteVocabulary(THINKING_TEMPLATE)
        app = make_app(ModelInfo(id="m", thinking_default=False))
        for fields, is_open in (({}, False), ({"reasoning_effort": "low"}, True)):
            call(app, chat_body(**fields))
            reasoning = engine.requests[-1].reasoning
            assert reasoning is not None
            assert reasoning.open is is_open

    def test_budgets_are_configurable(
        self, engine: FakeEngine, make_app: Callable[..., ASGIApp]
    ) -> None:
        engine.vocabulary = ByteVocabulary(THINKING_TEMPLATE)
        app = make_app(reasoning_budgets={"low": 7})
        for effort, budget in (("low", 7), ("high", None)):
            call(app, chat_body(reasoning_effort=effort))
            reasoning = engine.requests[-1].reasoning
            assert reasoning is not None
            assert reasoning.budget == budget

    def test_an_answer_that_is_continued_does_not_think(self, ask: Ask) -> None:
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Once"},
        ]
        reasoning = ask(messages=messages).reasoning
        assert reasoning is not None
        assert not reasoning.open

    def test_a_schema_goes_along_with_thinking(self, ask: Ask) -> None:
        request = ask(json_schema=SCHEMA)
        assert request.constraint is not None
        assert request.reasoning is not None
        assert request.reasoning.open


class TestThinkingThatTheModelBegins:
    """The template of Qwen 3 leaves it to the model to open its thinking."""

    TURN = "<|im_start|>assistant\n"

    @pytest.fixture
    def app(self, engine: FakeEngine, make_app: AppMaker) -> ASGIApp:
        template = shared_data("templates/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8")
        engine.vocabulary = ByteVocabulary(template)
        return make_app()

    def end_of(self, engine: FakeEngine, request: Request) -> str:
        return str(engine.vocabulary.text(request.prompt).rpartition(self.TURN)[2])

    @pytest.mark.parametrize(
        "form", [{"json_schema": SCHEMA}, {"response_format": {"type": "json_object"}}], ids=repr
    )
    def test_a_form_opens_it_so_that_the_grammar_waits(
        self, ask: Ask, engine: FakeEngine, form: dict[str, Any]
    ) -> None:
        request = ask(**form)
        assert self.end_of(engine, request) == "<think>\n"
        assert THINK in request.prompt
        assert request.reasoning is not None
        assert request.reasoning.open

    def test_free_text_leaves_it_to_the_model(self, ask: Ask, engine: FakeEngine) -> None:
        request = ask()
        assert self.end_of(engine, request) == ""
        assert request.reasoning is not None
        assert not request.reasoning.open

    def test_a_form_without_thinking_begins_with_the_answer(
        self, ask: Ask, engine: FakeEngine
    ) -> None:
        request = ask(json_schema=SCHEMA, reasoning_effort="none")
        assert self.end_of(engine, request) == "<think>\n\n</think>\n\n"
        assert request.reasoning is not None
        assert request.reasoning.answering

    def test_a_form_of_a_continued_answer_opens_nothing(self, ask: Ask, engine: FakeEngine) -> None:
        begun = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": '{"a":'}]
        request = ask(json_schema=SCHEMA, messages=begun)
        assert self.end_of(engine, request).endswith('{"a":')
        assert request.reasoning is not None
        assert not request.reasoning.open


@pytest.mark.parametrize("effort", ["none", "minimal", "xhigh"])
def test_a_model_that_cannot_think_answers_directly(ask: Ask, effort: str) -> None:
    reasoning = ask(reasoning_effort=effort).reasoning
    assert reasoning is None or not reasoning.open


def test_a_template_gets_the_effort_if_it_takes_one(
    engine: FakeEngine, make_app: Callable[..., ASGIApp]
) -> None:
    template = "{{ reasoning_effort | default('?') }}:{{ messages[0].content }}"
    engine.vocabulary = ByteVocabulary(template)
    app = make_app()
    for fields, head in (({"reasoning_effort": "high"}, "high:hi"), ({}, "?:hi")):
        call(app, chat_body(**fields))
        prompt = engine.vocabulary.text(engine.requests[-1].prompt)
        assert prompt.startswith(head)


def test_a_template_that_refuses_gives_400_with_its_text(
    engine: FakeEngine, make_app: Callable[..., ASGIApp]
) -> None:
    engine.vocabulary = ByteVocabulary("{{ raise_exception('no such talk') }}")
    refused = call(make_app(), chat_body())
    assert refused.status == 400
    assert "no such talk" in refused.error["message"]
