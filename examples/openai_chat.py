"""A question, answered by OpenAI's client while the words come."""

import os
import sys

from openai import OpenAI

url = os.environ.get("ASTRAI_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ASTRAI_API_KEY", "none"))

question = " ".join(sys.argv[1:]) or "Say hello."
stream = client.chat.completions.create(
    model="astrai",  # or the id that client.models.list() tells
    messages=[{"role": "user", "content": question}],
    max_completion_tokens=256,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n[{chunk.usage.prompt_tokens} + {chunk.usage.completion_tokens} tokens]")
