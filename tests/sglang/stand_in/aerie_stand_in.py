"""TEST DOUBLE: lets SGLang choose its attention backend for the CPU without compiled kernels.

SGLang speculates on a CPU with `--attention-backend intel_amx` alone, and takes that backend back
where the compiled kernels are missing. The stand-in has its two attention kernels and no other,
so only that choice is overridden: every layer still takes its plain torch path.
"""


def register() -> None:
    """Called by SGLang through the entry point `sglang.srt.plugins`."""
    from sglang.srt.runtime_context import _PLATFORM

    _PLATFORM._install(has_amx=True)
