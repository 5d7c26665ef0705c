#!/bin/sh
# The endpoints by hand: an answer whole, the same streamed, and the other protocols.
set -eu
url=${ASTRAI_URL:-http://127.0.0.1:8000}

post() {
    curl --silent --show-error --fail-with-body --no-buffer "$url$1" \
        --header "Content-Type: application/json" --data "$2"
    echo
}

curl --silent --show-error --fail "$url/health" && echo
curl --silent --show-error --fail "$url/v1/models" && echo

post /v1/chat/completions '{
  "messages": [{"role": "user", "content": "Say hello."}],
  "max_tokens": 64
}'
post /v1/chat/completions '{
  "messages": [{"role": "user", "content": "Say hello."}],
  "max_tokens": 64,
  "stream": true,
  "stream_options": {"include_usage": true}
}'
post /v1/messages '{
  "system": "Be brief.",
  "messages": [{"role": "user", "content": "Say hello."}],
  "max_tokens": 64
}'
post /v1/messages/count_tokens '{"messages": [{"role": "user", "content": "Say hello."}]}'
post /v1/completions '{"prompt": "Hello", "max_tokens": 8}'
post /v1/responses '{"input": "Say hello.", "max_output_tokens": 64}'
