"""The section `sglang` of the configuration: how servers are started, and how they are asked.

It reaches jobs by the environment and is no param of a rule: none of its keys says what an answer
is, and a build must not go stale because a port changed.
"""

from aerie.section import Section, key

VARIABLE = "AERIE_SGLANG"
URLS = "AERIE_SGLANG_URLS"


class SglangSettings(Section):
    """Servers of the engine `sglang`."""

    python: str = key("python", "the Python that has SGLang, a name or a path")
    host: str = key("127.0.0.1", "address that a server listens on")
    port: int = key(0, "port that a server listens on; 0: a free one", ge=0, le=65535)
    model: str | None = key(
        None, "what servers given by URL call the target; default: the target's folder"
    )
    tp: int = key(1, "GPUs that share a copy of the target (tensor parallelism)", ge=1)
    trust_remote_code: bool = key(False, "run code that the target's folder brings (Kimi-K2.5)")
    memory_share: float | None = key(
        None, "share of a GPU's memory for weights and KV cache; default: SGLang's", gt=0, lt=1
    )
    context_length: int | None = key(
        None, "tokens of prompt and answer; default: the target's own", ge=1
    )
    chunked_prefill: int | None = key(
        None, "tokens of a prefill pass; -1: no limit; default: SGLang's", ge=-1
    )
    concurrency: int = key(128, "requests in flight at each server", ge=1)
    arguments: tuple[str, ...] = key((), "more arguments of every server, as SGLang spells them")
    draft_arguments: tuple[str, ...] = key(
        (), "more arguments of a server that serves a draft, as SGLang spells them"
    )
    environment: dict[str, str] = key({}, "more environment variables of every server")
    start_timeout_s: float = key(3600, "longest time until a server is ready", gt=0)
    request_timeout_s: float = key(3600, "longest time until a request is answered", gt=0)
    tries: int = key(5, "attempts of one request", ge=1)
    restarts: int = key(8, "how often a server that died is started again", ge=0)
    spool: str | None = key(
        None, "folder where a server leaves states; default: shared memory, see docs/states.md"
    )
    capture_tokens: int = key(65536, "tokens that a capture runs ahead of its writer", ge=1)

    @classmethod
    def from_environment(cls) -> "SglangSettings":
        """The section that the workflow left in AERIE_SGLANG as JSON; defaults without it.

        Raises:
            ConfigError: it is not such a section.
        """
        return cls.from_variable(VARIABLE, "sglang", '{"tp": 8}', "docs/serving.md")
