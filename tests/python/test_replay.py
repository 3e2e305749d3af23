"""ashlar.replay: traces, simulated and with bytes."""

import json
import os

import ashlar
import numpy as np
import pytest
from ashlar import replay

TEXT = "chat,seed=3,requests=400"


def test_a_generated_trace_is_the_same_every_time():
    one, two = replay.Trace.generate(TEXT), replay.Trace.generate(TEXT)
    assert len(one) == 400 and one.name == TEXT
    assert np.array_equal(one.arrivals, two.arrivals) and np.array_equal(one.lengths, two.lengths)
    assert one.distinct_blocks < one.named_blocks
    assert int(one.lengths.sum()) == one.input_tokens
    assert one.arrivals[-1] == one.seconds


def test_more_blocks_find_more_up_to_the_bound():
    trace = replay.Trace.generate(TEXT)
    small = replay.replay_trace(trace, g1=200)
    large = replay.replay_trace(trace, g1=200, g2=100_000)
    assert 0 <= small.hit_rate < large.hit_rate <= large.bound_rate + 1e-12
    total = large.total
    assert total.requests == 400
    assert total.hit_blocks + sum(total.misses.values()) == total.blocks
    assert total.hits["g2"] > 0 and total.hits["g3"] == 0
    assert sum(window.requests for window in large.windows) == 400
    assert large.latency_ms["p50"] <= large.latency_ms["p99"]
    assert large.verified == 0
    report = json.loads(large.to_json())
    assert report and "<html" in large.to_html() and str(large)


def test_workers_share_the_requests():
    outcome = replay.replay_trace(replay.Trace.generate(TEXT), workers=3, routing="round_robin", bound=False)
    assert outcome.worker_requests.sum() == 400 and outcome.worker_requests.min() >= 133
    assert outcome.bound_rate == 0


def test_a_replay_with_bytes_compares_them(tmp_path):
    trace = replay.Trace.generate("chat,seed=3,requests=60")
    simulated = replay.replay_trace(trace, g1=400, g2=2000)
    real = replay.replay_trace(trace, g1=400, g2=2000, g3=4000, real=True, folder=tmp_path)
    assert real.verified > 0
    assert real.total.blocks == simulated.total.blocks
    assert not list(tmp_path.iterdir())  # its folder is its own, and gone


def test_a_trace_without_times_has_no_busiest_worker(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [{"input_length": 1024, "output_length": 10, "hash_ids": [i % 3, i]} for i in range(10)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert replay.replay_trace(replay.Trace.open(path), g1=10).busiest is None
    timed = [{**line, "timestamp": 10_000 * i} for i, line in enumerate(lines)]
    path.write_text("".join(json.dumps(line) + "\n" for line in timed))
    assert 0 < replay.replay_trace(replay.Trace.open(path), g1=10).busiest < 1


def test_a_trace_of_a_file(tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 1000 * i, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
             for i in range(5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    trace = replay.Trace.open(str(path))
    assert len(trace) == 5 and trace.distinct_blocks == 2
    assert replay.replay_trace(trace, g1=10).total.hit_blocks == 8
    odd = tmp_path / os.fsdecode(b"odd \xff.jsonl")
    odd.write_bytes(path.read_bytes())
    for same in (path, os.fsencode(path), odd, str(odd), os.fsencode(odd)):
        assert len(replay.Trace.open(same)) == 5
    assert replay.Trace.open(odd).name == str(tmp_path / "odd ?.jsonl")
    assert "odd" in replay.replay_trace(replay.Trace.open(odd), g1=10).to_json()
    for wrong, why in ((5, TypeError), ("a\0b", ValueError)):
        with pytest.raises(why):
            replay.Trace.open(wrong)
    with pytest.raises(ashlar.AshlarError):
        replay.Trace.open(tmp_path / os.fsdecode(b"none \xff"))
    with pytest.raises(ashlar.NotFound):
        replay.Trace.open(str(tmp_path / "nothing"))
    path.write_text("{\n")
    with pytest.raises(ashlar.AshlarError):
        replay.Trace.open(str(path), format="mooncake")


def test_wrong_options_are_errors():
    trace = replay.Trace.generate("chat,requests=10")
    with pytest.raises(ashlar.InvalidArgument):
        replay.replay_trace(trace, routing="by luck")
    with pytest.raises(ashlar.AshlarError):
        replay.replay_trace(trace, policy="none such")
    with pytest.raises(ashlar.AshlarError):
        replay.replay_trace(trace, g1=0)
    with pytest.raises(ashlar.InvalidArgument):
        replay.Trace.generate("chat,requests=many")


def test_progress_is_told_and_may_stop():
    trace = replay.Trace.generate(TEXT)
    told = []
    replay.replay_trace(trace, progress=lambda done, all_: told.append((done, all_)))
    assert told and told == sorted(told) and all(all_ == 400 for _, all_ in told)
    with pytest.raises(ashlar.Cancelled):
        replay.replay_trace(trace, progress=lambda done, all_: False)

    def fail(done, all_):
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        replay.replay_trace(trace, progress=fail)
