"""Tools end to end: the model calls them until it can answer."""

import json
import os
import sys

from openai import OpenAI

url = os.environ.get("ASTRAI_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ASTRAI_API_KEY", "none"))

MOST_TURNS = 5
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]


def get_weather(city: str, days: int = 1) -> str:
    """Here would be a weather service."""
    return f"sunny, 8 degrees in {city} for {days} days"


messages = [{"role": "user", "content": " ".join(sys.argv[1:]) or "Weather in Paris, please."}]
for _ in range(MOST_TURNS):
    answer = client.chat.completions.create(
        model="astrai", messages=messages, tools=TOOLS, temperature=0, max_completion_tokens=256
    )
    message = answer.choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        # The server has checked the arguments against the tool's schema.
        result = get_weather(**json.loads(call.function.arguments))
        print(f"[{call.function.name} {call.function.arguments} -> {result}]")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(message.content)
