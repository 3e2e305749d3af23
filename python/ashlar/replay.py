"""Replays: what a cache of some size, policy and routing would have found in a trace of requests.

    from ashlar import replay
    trace = replay.Trace.generate("chat,requests=2000")
    print(replay.replay_trace(trace, workers=2, g1=2000, g2=8000).hit_rate)
"""

from ashlar._native import ReplayCounts, ReplayOutcome, Trace, replay_trace

__all__ = ["ReplayCounts", "ReplayOutcome", "Trace", "replay_trace"]

for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
del _name
