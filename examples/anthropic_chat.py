"""A question, answered by Anthropic's client while the words come."""

import os
import sys

from anthropic import Anthropic

url = os.environ.get("ASTRAI_URL", "http://127.0.0.1:8000")
client = Anthropic(base_url=url, api_key=os.environ.get("ASTRAI_API_KEY", "none"))

request = {
    "model": "astrai",
    "system": "Be brief.",
    "messages": [{"role": "user", "content": " ".join(sys.argv[1:]) or "Say hello."}],
}
print(f"[{client.messages.count_tokens(**request).input_tokens} tokens to read]")
with client.messages.stream(**request, max_tokens=256) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    message = stream.get_final_message()
print(f"\n[{message.usage.output_tokens} tokens written: {message.stop_reason}]")
