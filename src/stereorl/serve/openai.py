"""The chat-completions dialect: what a client may send, strictly read, and what it gets back.

Fields that are not listed are tolerated, for real clients send many; listed ones are validated. Left out so far:
parsing of tool calls, `n` > 1, images, alternatives in `top_logprobs`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stereorl.data.message import Message, ToolCall

I64 = 2**63
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)  # one that never ends takes all that follows
_DEEPEST = 100


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 3.0 is the integer 3. True is none."""
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text_part(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("type"), str) and value["type"] != "text":
        raise PydanticCustomError(
            "unsupported_content",
            "Content parts of type '{kind}' are not supported; this model reads text parts only",
            {"kind": value["type"][:40]},
        )
    return value


WHOLE = BeforeValidator(_whole)  # after the bounds, or they do not reach the JSON schema

FIRST = Field(fail_fast=True)  # of a list that is read: a million errors would keep everyone waiting


class Read(BaseModel):
    """Base of what is read: strict types (no "1" for 1), finite numbers, extra fields dropped."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


class TextPart(Read):
    type: Literal["text"]
    text: str


Part = Annotated[TextPart, BeforeValidator(_text_part)]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], FIRST, Tag("parts")],
    Discriminator(lambda value: "parts" if isinstance(value, list) else "text"),
]


def _shallow(text: str) -> str:
    """Arguments are parsed again and again, by server and learner: what nests too deep for that never gets in."""
    bare = np.frombuffer(_STRING.sub("", text).encode(), np.uint8)
    steps = np.isin(bare, list(b"[{")).astype(np.int64) - np.isin(bare, list(b"]}"))
    if steps.cumsum().max(initial=0) > _DEEPEST:
        raise PydanticCustomError(
            "too_deep", "Arguments should nest at most {depth} deep", {"depth": _DEEPEST}
        )
    return text


class FunctionCall(Read):
    name: str
    arguments: Annotated[str, AfterValidator(_shallow)]


class ToolCallIn(Read):
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class SystemMessage(Read):
    role: Literal["system"]
    content: Content
    name: str | None = None


class DeveloperMessage(SystemMessage):
    role: Literal["developer"]  # type: ignore[assignment]


class UserMessage(Read):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Read):
    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallIn], FIRST] | None = None


class ToolMessage(Read):
    role: Literal["tool"]
    content: Content
    name: str | None = None
    tool_call_id: str | None = None


AnyMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class Function(Read):
    model_config = ConfigDict(extra="allow")
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Read):
    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    function: Function


class StreamOptions(Read):
    include_usage: bool | None = None


Stop = Annotated[
    Annotated[str, Tag("one")] | Annotated[list[str], Tag("many"), Field(max_length=4, fail_fast=True)],
    Discriminator(lambda value: "many" if isinstance(value, list) else "one"),
]
Tokens = Annotated[int, Field(ge=1, le=1_000_000), WHOLE]


class ChatRequest(Read):
    """`POST /v1/chat/completions`. The reply ends with `length` where the context does, whatever was asked for."""

    model: str | None = Field(None, description="Any name is accepted: one model is served.")
    messages: list[AnyMessage] = Field(min_length=1, fail_fast=True)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: Annotated[int, Field(ge=-1, le=1_000_000), WHOLE] | None = Field(
        None, description="0 or -1: no limit."
    )
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = Field(None, description="Wins over `max_tokens`.")
    stop: Stop | None = None
    seed: Annotated[int, Field(ge=-I64, le=I64 - 1), WHOLE] | None = None
    n: Annotated[int, Field(ge=1, le=1), WHOLE] | None = Field(None, description="One reply per request.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = Field(None, description="Adds the log-prob of each sampled token.")
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = Field(
        None, description="Accepted; alternatives to the sampled token are not reported."
    )
    tools: Annotated[list[Tool], FIRST] | None = None
    user: str | None = None

    def stops(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in given if text)

    def canonical(self) -> tuple[Message, ...]:
        """The messages as the rest of the system knows them: developer is system, parts are joined."""
        return tuple(_canonical(message) for message in self.messages)

    def tool_dicts(self) -> tuple[dict[str, Any], ...]:
        return tuple(tool.model_dump(exclude_unset=True) for tool in self.tools or ())


def _canonical(message: Any) -> Message:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    calls = tuple(
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in getattr(message, "tool_calls", None) or ()
    )
    role = "system" if message.role == "developer" else message.role
    return Message(role, text, message.name, calls, getattr(message, "tool_call_id", None))


class FeedbackRequest(Read):
    """`POST /v1/feedback`: a score, a correction, or both, about one turn."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {
                    "required": ["score"],
                    "properties": {"score": {"type": "integer", "minimum": -1, "maximum": 1}},
                },
                {
                    "required": ["correction"],
                    "properties": {
                        "correction": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 20_000,
                            "pattern": r"\S",
                        }
                    },
                },
            ]
        }
    )
    turn_id: str = Field(min_length=1, max_length=200, description="With or without the prefix `chatcmpl-`.")
    score: Annotated[int, Field(ge=-1, le=1), WHOLE] | None = None
    correction: str | None = Field(None, min_length=1, max_length=20_000, pattern=r"\S")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.score is None and self.correction is None:
            raise PydanticCustomError("empty_feedback", "Send a score (-1, 0 or 1), a correction, or both")
        return self


# --- what goes out -----------------------------------------------------------------------------------------------


class ErrorInfo(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Every error of every route."""

    error: ErrorInfo


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TokenLogProb(BaseModel):
    """`bytes` is null where a token holds only a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[Any] = []


class LogProbs(BaseModel):
    content: list[TokenLogProb]
    refusal: None = None


class ReplyMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(BaseModel):
    index: Literal[0] = 0
    message: ReplyMessage
    logprobs: LogProbs | None = None
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """`policy_version` (not in OpenAI's dialect) is the version that sampled the last token."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage
    policy_version: int


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "stereorl"
    policy_version: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class FeedbackReceipt(BaseModel):
    turn_id: str
    session_id: str
    recorded: Literal[True] = True


class Health(BaseModel):
    """`degraded`: the store cannot be read, and `store` says why."""

    status: Literal["ok", "degraded"]
    policy_version: int
    model: str
    store: str
    learner: Literal["running", "absent"]
