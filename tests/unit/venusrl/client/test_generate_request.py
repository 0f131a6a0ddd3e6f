"""A look asks with a prompt or a conversation, never with both or neither."""

import pytest
from pydantic import ValidationError

from venusrl.models.checkpoints import AskedMessage, GenerateRequest


def test_a_prompt_or_a_conversation_is_enough() -> None:
    assert GenerateRequest(prompt="1+1").messages is None
    message = AskedMessage(role="user", content="1+1")
    assert GenerateRequest(messages=[message]).prompt is None


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}]
)
def test_both_or_neither_are_refused(body: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="either prompt or messages"):
        GenerateRequest.model_validate(body)
