"""OpenAI's responses: `/v1/responses`, without anything kept between requests."""
