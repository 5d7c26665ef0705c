"""A conversation in a named session: every turn runs only what is new in it."""

import os

from openai import OpenAI

url = os.environ.get("ASTRAI_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ASTRAI_API_KEY", "none"))

SESSION = "example"
messages = [{"role": "system", "content": "You are a patient guide to a small museum of clocks."}]
for question in ("Say hello.", "What time is it?", "Say goodbye."):
    messages.append({"role": "user", "content": question})
    # The whole history goes along each time, so nothing is lost where the server forgot it.
    answer = client.chat.completions.create(
        model="astrai",
        messages=messages,
        max_completion_tokens=48,
        extra_headers={"X-Session-ID": SESSION},
    )
    messages.append(answer.choices[0].message)
    usage = answer.usage
    print(f"> {question}\n{answer.choices[0].message.content}")
    print(f"[{usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} tokens reused]")
client.delete(f"/sessions/{SESSION}", cast_to=object)
