"""A question about an image: python image.py FILE.png [QUESTION]"""

import base64
import os
import sys
from pathlib import Path

from openai import OpenAI

url = os.environ.get("ASTRAI_URL", "http://127.0.0.1:8000")
client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("ASTRAI_API_KEY", "none"))

path = Path(sys.argv[1])
kind = "png" if path.suffix.lower() == ".png" else "jpeg"
data = base64.b64encode(path.read_bytes()).decode()
question = " ".join(sys.argv[2:]) or "What colour is this image? "
answer = client.chat.completions.create(
    model="astrai",
    messages=[
        {
            "role": "user",
            "content": [
                {"type": "text", "text": question},
                {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}},
            ],
        }
    ],
    temperature=0,
    max_completion_tokens=256,
)
print(answer.choices[0].message.content)
