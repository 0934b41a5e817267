"""OpenAI's Responses protocol: its items as messages of Chat Completions, and answers as its responses and events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]


def messages_of(items: Any) -> list[Message]:
    """The messages of a request's input. Calls that follow each other are one message."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Message] = []
    for item in items:
        if item.get("type") == "function_call":
            call = {"id": item["call_id"], "type": "function"}
            call["function"] = {"name": item["name"], "arguments": item["arguments"]}
            if not (messages and messages[-1].get("tool_calls")):
                messages.append(
                    {"role": "assistant", "content": None, "tool_calls": []}
                )
            messages[-1]["tool_calls"].append(call)
        elif item.get("type") == "function_call_output":
            messages.append(
                {
                    "role": "tool",
                    "tool_call_id": item["call_id"],
                    "content": item["output"],
                }
            )
        else:
            messages.append({"role": item["role"], "content": item["content"]})
    return messages


def tool_names(tools: list[Any]) -> list[str]:
    """The names of the tools that a request of either protocol offers."""
    return [tool.get("function", tool)["name"] for tool in tools]


def before(body: Message, kept: dict[str, list[Message]]) -> list[Message] | None:
    """The kept messages from which a request goes on; [] if from none, None if the server does not have them."""
    previous = body.get("previous_response_id")
    return [] if previous is None else kept.get(previous)


def response(name: str, model: str, message: Message, usage: Message) -> Message:
    """The response of this name, with the model's answer."""
    return {
        "id": name,
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": model,
        "output": _output(message),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def events(
    name: str, model: str, message: Message, usage: Message
) -> Iterator[Message]:
    """The events of a stream with the model's answer."""
    whole = response(name, model, message, usage)
    yield {
        "type": "response.created",
        "response": {**whole, "output": [], "usage": None, "status": "in_progress"},
    }
    for i, item in enumerate(whole["output"]):
        place = {"item_id": item["id"], "output_index": i}
        if item["type"] == "function_call":
            yield {
                "type": "response.output_item.added",
                "output_index": i,
                "item": {**item, "arguments": ""},
            }
            yield {
                "type": "response.function_call_arguments.done",
                **place,
                "arguments": item["arguments"],
            }
        else:
            text = item["content"][0]["text"]
            for start in range(0, len(text), 7):
                delta = {
                    "delta": text[start : start + 7],
                    "content_index": 0,
                    "logprobs": [],
                }
                yield {"type": "response.output_text.delta", **place, **delta}
    yield {"type": "response.completed", "response": whole}


def _output(message: Message) -> list[Message]:
    items: list[Message] = []
    if message.get("content"):
        text = {"type": "output_text", "text": message["content"], "annotations": []}
        items.append(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        )
    for call in message.get("tool_calls") or []:
        names = {
            "id": f"fc_{call['id']}",
            "call_id": call["id"],
            "type": "function_call",
            "status": "completed",
        }
        items.append({**names, **call["function"]})
    return items
