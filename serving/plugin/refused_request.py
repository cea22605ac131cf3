"""Refusals as exceptions that vLLM's HTTP app and gRPC service map to a status."""

from http import HTTPStatus

from vllm.exceptions import GracefulHTTPError, VLLMValidationError

from serving.policy.admission.refusal import Refused


class RefusedRequest(GracefulHTTPError, Refused):
    """`refused` in vLLM's type: 503 for the server's reasons, 429 for load."""

    def __init__(self, refused: Refused) -> None:
        of_server = refused.reason.is_of_server
        status = HTTPStatus.SERVICE_UNAVAILABLE if of_server else HTTPStatus.TOO_MANY_REQUESTS
        # vLLM's own __init__ would call ours, with what it knows.
        Refused.__init__(
            self,
            refused.reason,
            str(refused),
            retry_after_s=refused.retry_after_s,
            rate=refused.rate,
        )
        self.message, self.http_status = str(refused), status


class GrammarTooHeavy(VLLMValidationError, ValueError):
    """A structured output's grammar above the limit; vLLM answers 400."""

    def __init__(self, weight: int, weight_max: int) -> None:
        words = (
            "structured output: expected a schema, choice, regex or grammar of a weight of at most "
            f"{weight_max:,} (about its letters, with patterns and alternatives squared), "
            f"not {weight:,}"
        )
        VLLMValidationError.__init__(self, words, parameter="structured_outputs")


class TooManyPromptLogprobs(VLLMValidationError, ValueError):
    """Prompt logprobs above the limit; vLLM answers 400."""

    def __init__(self, wanted: int, wanted_max: int) -> None:
        words = (
            "prompt_logprobs: expected at most "
            f"{wanted_max:,} logprobs of a request's prompts (tokens times prompt_logprobs + 1), "
            f"not {wanted:,}"
        )
        VLLMValidationError.__init__(self, words, parameter="prompt_logprobs")
