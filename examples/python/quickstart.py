"""Two requests with one beginning: the second finds the blocks of the first.

    pip install . && python examples/python/quickstart.py
"""

import ashlar
import numpy as np

manager = ashlar.BlockManager(block_count=64, block_size=16)
system_prompt = np.arange(48, dtype=np.uint32)  # three blocks that every request begins with


def serve(question):
    """Runs a request to its first token; returns how many tokens of its prompt were cached."""
    request = ashlar.RequestSequence(manager, np.concatenate([system_prompt, question]))
    with request:
        cached = request.match_prefix()
        while request.computed_tokens < request.prompt_size:
            step = min(32, request.tokens_to_compute)
            token = 7 if step == request.tokens_to_compute else None  # the last step samples one
            request.schedule_prefill(step)  # takes blocks; a kernel would now fill request.block_table()
            request.apply_prefill(token)  # its full blocks can be found from here on
        return cached


print("first request: ", serve(np.array([100, 101, 102], np.uint32)), "tokens cached")
print("second request:", serve(np.array([200, 201], np.uint32)), "tokens cached")
print(manager.status)

try:
    manager.allocate(65)
except ashlar.InvalidArgument as error:
    print("refused:", error.code)
