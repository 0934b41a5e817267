"""An HTTP server that speaks OpenAI's Chat Completions and Responses protocols and refuses what OpenAI refuses."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, TypeVar

from tests.openai_complaints import why_fields_refused, why_too_long
from tests.openai_responses import before, events, messages_of, response, tool_names

if TYPE_CHECKING:
    from benchmarks.prompt_caches import Usage
    from tests.openai_caches import PromptCaches

Message = dict[str, Any]
State = TypeVar("State")
# What the model answers to the messages and the names of the tools that it was offered.
Model = Callable[[list[Message], list[str]], Message]

_FIELDS = {
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "function_call",
    "refusal",
    "audio",
}


@dataclass
class OpenAIServer:
    """Where the server listens, and what it was sent: the messages of each accepted request, and its whole body.

    With ``caches`` it reports what they find, and keeps it. An ``older`` one is what it was before GPT-5.6. What
    exceeds a ``context_window`` it refuses, and what else one refuses, it says by ``complain``.
    """

    api_base: str
    model: Model
    requests: list[list[Message]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    older: bool = False
    complain: Callable[[dict[str, Any]], str | None] = lambda body: None
    context_window: int | None = None
    caches: PromptCaches | None = None
    usages: list[Usage] = field(default_factory=list)
    # The messages up to each response that a request may go on from.
    kept: dict[str, list[Message]] = field(default_factory=dict)

    def usage(self, body: dict[str, Any]) -> Message:
        """What is reported of the tokens of a request."""
        counts = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        details = {"cached_tokens": 0, "cache_write_tokens": 0}
        if self.caches:
            usage = self.caches.serve(body, older=self.older)
            self.usages.append(usage)
            counts.update(
                {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt + 1}
            )
            details = {
                "cached_tokens": usage.found,
                "cache_write_tokens": usage.written,
            }
        return {**counts, "prompt_tokens_details": details}


@contextmanager
def serve(model: Model) -> Iterator[OpenAIServer]:
    """Serve until the end of the block, on a free port of this machine."""
    with listening(
        Handler, lambda address: OpenAIServer(f"{address}/v1", model)
    ) as server:
        yield server


@contextmanager
def listening(
    handler: type[BaseHTTPRequestHandler], state_at: Callable[[str], State]
) -> Iterator[State]:
    """Serve until the end of the block, with a state that is made for the address and that the handler finds."""
    http = _Server(("127.0.0.1", 0), handler)
    state = state_at(f"http://127.0.0.1:{http.server_address[1]}")
    http.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def say(text: str) -> Message:
    """An answer in words."""
    return {"role": "assistant", "content": text}


def call(
    *calls: tuple[str, str, dict[str, Any]], content: str | None = None
) -> Message:
    """An answer that asks for tools: (id, name, arguments) each."""
    tool_calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": tool_calls}


def fail(status: int, message: str) -> Message:
    """No answer but an error of HTTP."""
    return {"status": status, "error": {"message": message, "type": "server_error"}}


def why_refused(messages: Any) -> str | None:
    """OpenAI's complaint about the messages of a request, or None."""
    if not isinstance(messages, list) or not messages:
        return (
            "Invalid 'messages': empty array. Expected an array with minimum length 1."
        )
    waiting: list[str] = []
    for i, message in enumerate(messages):
        complaint = _why_one_refused(i, message, waiting)
        if complaint:
            return complaint
        if message["role"] == "assistant":
            waiting = [tool_call["id"] for tool_call in message.get("tool_calls") or []]
        elif message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
    return _unanswered(waiting) if waiting else None


def _why_one_refused(  # noqa: PLR0911 - one return for each of OpenAI's complaints
    i: int, message: Message, waiting: list[str]
) -> str | None:
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool"):
        return f"Invalid value: {role!r}."
    if set(message) - _FIELDS:
        return f"Additional properties are not allowed ({sorted(set(message) - _FIELDS)} at messages.[{i}])."
    if role == "tool" and message.get("tool_call_id") not in waiting:
        return "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
    if role != "tool" and waiting:
        return _unanswered(waiting)
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        return f"Invalid value for 'content': expected a string, got null (messages.[{i}])."
    if not isinstance(content, (str, list, type(None))):
        return f"Invalid type for 'messages.[{i}].content'."
    if any(
        "\ud800" <= character <= "\udfff"
        for character in json.dumps(message, ensure_ascii=False)
    ):
        return "We could not parse the JSON body of your request: invalid unicode."
    return None


def _unanswered(waiting: list[str]) -> str:
    return (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}"
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Complain, unless a client has gone: some are killed on purpose, or do not wait for the answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two packets, and the second must not wait until the first is acknowledged.
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        """Silent."""

    def do_POST(self) -> None:
        state: OpenAIServer = self.server.state  # type: ignore[attr-defined]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        responses = self.path.endswith("/responses")
        messages = messages_of(body["input"]) if responses else body.get("messages")
        earlier = before(body, state.kept)
        messages = [*(earlier or []), *messages] if responses else messages
        complaint = (
            why_refused(messages)
            or why_fields_refused(body, older=state.older)
            or state.complain(body)
        )
        if earlier is None:
            complaint = (
                f"Previous response with id '{body['previous_response_id']}' not found."
            )
        if complaint:
            state.refusals.append(complaint)
            self.send(
                400, {"error": {"message": complaint, "type": "invalid_request_error"}}
            )
            return
        too_long = state.context_window and why_too_long(
            body, messages, state.context_window
        )
        if too_long:
            state.refusals.append(too_long["message"])
            self.send(400, {"error": too_long})
            return
        state.requests.append(messages)
        state.bodies.append(body)
        message = state.model(messages, tool_names(body.get("tools") or []))
        if "error" in message:
            self.send(message["status"], {"error": message["error"]})
            return
        usage = state.usage(body)
        name = f"resp_{len(state.bodies)}"
        if responses and body.get("store") is not False:
            state.kept[name] = [*messages, message]
        if body.get("stream"):
            stream = (
                events(name, body["model"], message, usage)
                if responses
                else _chunks(body, message, usage)
            )
            self.send_events(stream)
        elif responses:
            self.send(200, response(name, body["model"], message, usage))
        else:
            self.send(200, completion(body["model"], message, usage))

    def send(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def send_events(self, stream: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number, event in enumerate(stream):
            # Of a protocol that names its events, each is numbered.
            name = f"event: {event['type']}\n" if "type" in event else ""
            data = {**event, "sequence_number": number} if name else event
            self.wfile.write(f"{name}data: {json.dumps(data)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


def completion(model: str, message: Message, usage: Message) -> dict[str, Any]:
    reason = message.get("finish_reason") or (
        "tool_calls" if message.get("tool_calls") else "stop"
    )
    message = {key: value for key, value in message.items() if key != "finish_reason"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }


def _chunks(
    body: dict[str, Any], message: Message, usage: Message
) -> Iterator[dict[str, Any]]:
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body["model"],
    }
    for delta in _deltas(message):
        yield {
            **chunk,
            "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        }
    if (body.get("stream_options") or {}).get("include_usage"):
        yield {**chunk, "choices": [], "usage": usage}


def _deltas(message: Message) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    text = message.get("content") or ""
    for start in range(0, len(text), 7):
        yield {"content": text[start : start + 7]}
    for i, tool_call in enumerate(message.get("tool_calls") or []):
        yield {"tool_calls": [{"index": i, **tool_call}]}
