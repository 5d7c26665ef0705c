"""OpenAI's protocol: chat completions, and completions as they were before."""
