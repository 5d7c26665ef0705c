"""LangChain on this server: a model with a tool, and its stream."""

import os

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Weather of a city"""
    return f"sunny, 8 degrees in {city}"


model = ChatOpenAI(
    model="astrai",
    base_url=os.environ.get("ASTRAI_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("ASTRAI_API_KEY", "none"),
    temperature=0,
    max_tokens=256,
)
with_tools = model.bind_tools([get_weather])
messages = [HumanMessage("Weather in Paris, please.")]
asked = with_tools.invoke(messages)
messages.append(asked)
for call in asked.tool_calls:
    messages.append(get_weather.invoke(call))
    print(f"[{call['name']} {call['args']}]")
for chunk in with_tools.stream(messages):
    print(chunk.content, end="", flush=True)
print()
