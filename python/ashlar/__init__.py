"""Ashlar: KV cache blocks for LLM inference."""

from ashlar._native import *  # noqa: F401,F403
