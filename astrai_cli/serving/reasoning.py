"""What a request may ask of the model's reasoning: how much of it, and whether to see it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic_core import PydanticCustomError

from astrai_cli.serving.body import Body, only

Effort = Literal["low", "medium", "high"]


class ReasoningOptions(Body):
    """`reasoning` of a request. Reasoning itself cannot be turned off."""

    effort: Effort | None = None
    exclude: bool | None = None
    enabled: Annotated[bool, only(True)] = True


class ReasoningBody(Body):
    """The fields of a request about reasoning, in the spellings of several clients."""

    reasoning: ReasoningOptions = ReasoningOptions()
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None

    @property
    def effort(self) -> Effort | None:
        """How much to reason; None leaves it to the template."""
        return self.reasoning_effort or self.reasoning.effort

    @property
    def shows_reasoning(self) -> bool:
        return not self.reasoning.exclude and self.include_reasoning is not False

    def check_reasoning(self) -> None:
        """Raises the error of validation for two fields that contradict each other."""
        if self.reasoning.effort not in {None, self.effort}:
            raise PydanticCustomError(
                "invalid_value", "reasoning.effort and reasoning_effort contradict each other"
            )
        if self.include_reasoning is not None and (
            self.reasoning.exclude == self.include_reasoning
        ):
            raise PydanticCustomError(
                "invalid_value", "reasoning.exclude and include_reasoning contradict each other"
            )
