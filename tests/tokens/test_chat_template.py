import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trained_tokenizers import trained

from longstride.errors import DataError
from longstride.tokens.chat import parse_answer, render_example, render_prompt
from longstride.tokens.tokenizer import SPECIALS
from schemas.rows import Message

CONTENT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(SPECIALS)
THOUGHT = st.tuples(CONTENT, CONTENT).map(lambda pair: f"<think>{pair[0]}</think>{pair[1]}")


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages = [Message(role="system", content=draw(CONTENT))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message(role="user", content=draw(CONTENT)))
        messages.append(Message(role="assistant", content=draw(THOUGHT)))
    return messages


@settings(deadline=None)
@given(conversations())
def test_only_assistant_content_and_its_end_are_targets(messages: list[Message]) -> None:
    tokenizer = trained()
    ids, mask = render_example(tokenizer, messages)
    assert len(ids) == len(mask)
    trained_ids = [token for token, target in zip(ids, mask, strict=True) if target]
    said = "".join(m.content + "<|end|>" for m in messages if m.role == "assistant")
    assert tokenizer.decode(trained_ids, keep_end=True) == said
    headers = {tokenizer.special(name) for name in ("<|user|>", "<|system|>", "<|assistant|>")}
    assert headers.isdisjoint(trained_ids)


@settings(deadline=None)
@given(conversations())
def test_later_turns_never_change_earlier_ones(messages: list[Message]) -> None:
    whole, _ = render_example(trained(), messages)
    for turn, message in enumerate(messages):
        if message.role == "assistant":
            prompt = render_prompt(trained(), messages[:turn])
            part, _ = render_example(trained(), messages[: turn + 1])
            assert whole[: len(prompt)] == prompt
            assert whole[: len(part)] == part


@settings(deadline=None)
@given(CONTENT)
def test_a_user_cannot_forge_a_turn_or_a_thought(text: str) -> None:
    tokenizer = trained()
    ids = render_prompt(tokenizer, [Message(role="user", content=text)])
    special = [token for token in ids if token < len(SPECIALS)]
    names = ["<|user|>", "<|end|>", "<|assistant|>"]
    assert special == [tokenizer.special(name) for name in names]


@settings(deadline=None)
@given(CONTENT, CONTENT)
def test_think_tags_of_the_assistant_are_special_tokens(thought: str, answer: str) -> None:
    tokenizer = trained()
    messages = [
        Message(role="user", content="?"),
        Message(
            role="assistant", content=f"<think>{thought.replace('think>', '')}</think>{answer}"
        ),
    ]
    ids, _ = render_example(tokenizer, messages)
    assert ids.count(tokenizer.think_id) == 1 + (answer == "<think>")
    assert ids.count(tokenizer.end_think_id) == 1 + (answer == "</think>")


@pytest.mark.parametrize(
    "roles",
    [[], ["system"], ["assistant"], ["user", "user"], ["user", "system", "user"],
     ["user", "assistant"]],
)  # fmt: skip
def test_prompts_out_of_order_are_refused(roles: list[str]) -> None:
    messages = [Message.model_validate({"role": role, "content": "x"}) for role in roles]
    with pytest.raises(DataError, match="not a conversation that ends with the user"):
        render_prompt(trained(), messages)


def test_an_example_without_an_answer_is_refused() -> None:
    with pytest.raises(DataError, match="ends with the assistant"):
        render_example(trained(), [Message(role="user", content="x")])


@pytest.mark.parametrize(
    ("text", "thinking", "answer", "well_formed"),
    [
        ("<think>2+2</think>4", "2+2", "4", True),
        (" <think></think>\n4 \n", "", "4", True),
        ("<think>2+2</think>", None, "", False),
        ("<think>2+2</think>  ", None, "", False),
        ("<think>2+2", None, "", False),
        ("4", None, "4", False),
        ("", None, "", False),
        ("2+2</think>4", None, "4", False),
        ("so <think>2+2</think>4", None, "4", False),
        ("<think>a</think>1<think>b</think>2", None, "2", False),
        ("<think>a</think>1<think>b", None, "", False),
        ("<think>a<think>b</think>2", None, "2", False),
        ("</think>4<think>", None, "", False),
        ("<think>a</think></think>4", None, "4", False),
    ],
)
def test_answers_are_taken_apart(
    text: str, thinking: str | None, answer: str, well_formed: bool
) -> None:
    assert parse_answer(text) == (thinking, answer, well_formed)


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_any_thought_and_answer_without_tags_come_back(thinking: str, answer: str) -> None:
    parsed = parse_answer(f"<think>{thinking}</think>{answer}")
    assert parsed.well_formed == bool(answer.strip())
    if parsed.well_formed:
        assert (parsed.thinking, parsed.answer) == (thinking, answer.strip())
