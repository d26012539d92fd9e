"""The OpenAPI document: bodies are read by hand (body.py), so their schemas are put in by hand, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from stereorl.serve import openai, scoring

_REF = "#/components/schemas/{model}"
_MODELS: tuple[tuple[type[BaseModel], Any], ...] = (
    (openai.ChatRequest, "validation"),
    (openai.FeedbackRequest, "validation"),
    (openai.ErrorBody, "serialization"),
    (openai.ChatCompletion, "serialization"),
    (openai.ModelCard, "serialization"),
    (openai.ModelList, "serialization"),
    (openai.FeedbackReceipt, "serialization"),
    (openai.Health, "serialization"),
    (scoring.ScoreRequest, "validation"),
    (scoring.ScoreAnswer, "serialization"),
)
_WHY = {
    400: "Not valid: the JSON, a field, a header, or a prompt that is longer than the context.",
    401: "No or a wrong API key.",
    403: "The Host header is not one of this server's.",
    404: "No such turn, model or path.",
    405: "This path does not take that method.",
    413: "The body is larger than `serve.max_body_mb`.",
    415: "The body is not sent as application/json.",
    429: "Too many requests are waiting.",
    500: "The engine or the store failed.",
    503: "The store cannot be read.",
    507: "The disk is full: the turn could not be recorded.",
}


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(model=model.__name__)}}


def _operation(
    answer: dict[str, Any],
    *errors: int,
    request: type[BaseModel] | None = None,
    tags: list[str],
    **extra: Any,
) -> dict[str, Any]:
    """Arguments for a route's decorator. 401, 403 and 405 can come from every path."""
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "Done.", **answer}}
    for status in sorted({401, 403, 405, 500, *errors}):
        responses[status] = {
            "description": _WHY[status],
            "content": {"application/json": _ref(openai.ErrorBody)},
        }
    body = (
        {"requestBody": {"required": True, "content": {"application/json": _ref(request)}}}
        if request
        else None
    )
    return {"responses": responses, "response_model": None, "openapi_extra": body, "tags": tags, **extra}


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"content": {"application/json": _ref(model)}}


_TURN_HEADERS = {
    "X-Session-Id": {"required": True, "schema": {"type": "string"}, "description": "The turn's session."},
    "X-Turn-Id": {"required": True, "schema": {"type": "string"}, "description": "`id` without its prefix."},
    "X-Policy-Version": {
        "required": True,
        "schema": {"type": "string"},
        "description": "Which weights sampled.",
    },
}
_EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A chunk, an error object, or [DONE]."}},
}
_CHAT_ANSWER = {
    "description": "The reply: one object, or with `stream` a series of events that ends with [DONE].",
    "headers": _TURN_HEADERS,
    "content": {
        "application/json": _ref(openai.ChatCompletion),
        "text/event-stream": {"schema": _EVENT},
    },
}
CHAT = _operation(_CHAT_ANSWER, 400, 413, 415, 429, 507, request=openai.ChatRequest, tags=["openai"])
FEEDBACK = _operation(
    _json(openai.FeedbackReceipt), 400, 404, 413, 415, 507, request=openai.FeedbackRequest, tags=["stereorl"]
)
SCORE = _operation(
    _json(scoring.ScoreAnswer), 400, 413, 415, 429, request=scoring.ScoreRequest, tags=["stereorl"]
)
MODELS = _operation(_json(openai.ModelList), tags=["openai"])
MODEL = _operation(_json(openai.ModelCard), 404, tags=["openai"])
METRICS = _operation({"content": {"text/plain": {"schema": {"type": "string"}}}}, tags=["operating"])
HEALTH = _operation(_json(openai.Health), tags=["operating"])
HEALTH["responses"][503] = {"description": _WHY[503], **_json(openai.Health)}


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """An optional header may be absent, but there is no null on the wire."""
    some = [branch for branch in schema.get("anyOf", ()) if branch != {"type": "null"}]
    return some[0] if len(some) == 1 else schema


def document(app: FastAPI, *, keyed: bool) -> Callable[[], dict[str, Any]]:
    """What `app.openapi` should be: FastAPI's document with our schemas, and the key where one is set."""

    def build() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app, keyed)
        return app.openapi_schema

    return build


def _build(app: FastAPI, keyed: bool) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for model, mode in _MODELS:
        own = model.model_json_schema(ref_template=_REF, mode=mode)
        schemas.update(own.pop("$defs", {}))
        schemas[model.__name__] = own
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _not_null(parameter["schema"])
            if keyed and path != "/healthz":
                operation["security"] = [{"key": []}]
    if keyed:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return schema
