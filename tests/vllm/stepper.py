"""vLLM's own scheduler and both sides of its offloading connector over our spec, without a model.

For cache groups that the CPU platform does not start: sliding windows beside full attention, states, large
blocks. Grouping, scheduling, keys, jobs and fences are the engine's; only the forward pass is replaced. It
writes into every token's place in every layer a mark of the whole prefix up to that token, and before that
reads the marks of all tokens it would attend to. So a block that is stale, foreign, torn or missing fails at
once, naming the token.

A state (Mamba) block has one mark: that of the last token it has seen.
"""
import collections
import copy
import time

import numpy as np


class Marks:
    """One 8-byte mark for every prefix of a request."""

    def __init__(self, salt=0):
        self.state = 0x9E3779B97F4A7C15 ^ salt
        self.marks = np.empty(0, dtype=np.uint64)

    def of(self, tokens, count):
        """The marks of the first `count` tokens; tokens are only ever appended."""
        more = []
        for token in tokens[len(self.marks):count]:
            state = ((self.state ^ token) * 0xD6E8FEB86659FD93 + 0x632BE59BD9B4E019) % (1 << 64)
            self.state = state ^ state >> 29
            more.append(self.state)
        if more:
            self.marks = np.concatenate([self.marks, np.array(more, dtype=np.uint64)])
        return self.marks[:count]


def engine_config(model, connector, **settings):
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs

    arguments = dict(model=str(model), dtype="float32", skip_tokenizer_init=True, enable_prefix_caching=True,
                     block_size=32, max_model_len=4096, enforce_eager=True, max_num_seqs=8,
                     max_num_batched_tokens=4096, kv_transfer_config=KVTransferConfig(**connector))
    config = EngineArgs(**{**arguments, **settings}).create_engine_config()
    # The CPU platform turns it off; what is tested here is what other platforms do.
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    return config


def is_state(spec):
    from vllm.v1.kv_cache_interface import MambaSpec
    return isinstance(spec, MambaSpec)


class Worker:
    """The memory of one rank, its side of the connector, and what a model would do there."""

    def __init__(self, connector, config, layers, rank, by_head, copies):
        import torch

        self.connector, self.layers, self.rank = connector, layers, rank
        # Marks of single heads, numbered over all ranks, where pages are to be read by other numbers of them.
        self.by_head = by_head
        self.copies = copies  # ranks that have the same heads
        self.seen = collections.Counter()
        # One allocation for all layers, as the engine places them.
        self.memory = torch.zeros(config.kv_cache_tensors[0].size, dtype=torch.int8)
        self.pages, tensors = {}, {}
        for placed in config.kv_cache_tensors:
            for number, name in enumerate(placed.layers):
                shape = (config.num_blocks, layers[name].page_size_bytes)
                tensors[name] = self.memory.as_strided(shape, (placed.block_stride, 1),
                                                       placed.offset + number * placed.layer_stride)
                self.pages[name] = tensors[name].numpy()
                if by_head:
                    tensors[name] = self.of_heads(placed, number, layers[name], config.num_blocks)
        connector.register_kv_caches(tensors)

    def of_heads(self, placed, number, spec, blocks):
        """The same memory as an attention backend sees it: heads, tokens, keys beside values."""
        import torch

        size, tokens = 2 * spec.head_size, spec.block_size
        place = placed.offset + number * placed.layer_stride
        return self.memory.view(torch.float32).as_strided(
            (blocks, spec.num_kv_heads, tokens, size),
            (placed.block_stride // 4, tokens * size, size, 1), place // 4)

    def marks(self, layer, block, tokens):
        """The places of marks of these tokens of a block; each token has an equal part of the page."""
        spec = self.layers[layer]
        page = self.pages[layer][block]
        if is_state(spec):
            return page[:8].view(np.uint64)
        if self.by_head:
            heads = page.view(np.uint64).reshape(spec.num_kv_heads, spec.block_size, -1)
            return heads.transpose(1, 0, 2)[tokens]
        part = spec.page_size_bytes // spec.block_size // 8 * 8
        return page[:part * spec.block_size].view(np.uint64).reshape(spec.block_size, -1)[tokens]

    def forward(self, name, groups, table, marks, computed, scheduled):
        if any(not self.connector.connector_worker.invalid.isdisjoint(ids) for ids in table
               if hasattr(self.connector.connector_worker, "invalid")):
            # The connector says of this step that its load failed: what comes of it is rubbish.
            marks, computed, scheduled = ~marks, 0, computed + scheduled
            self.seen["rubbish"] += 1
        # Ranks hold different heads, so different bytes; a latent (MLA) is the same on all.
        one_for_all = all("MLA" in type(spec).__name__ for spec in self.layers.values())
        if self.rank and not self.by_head and not one_for_all:
            marks = marks + np.uint64(self.rank)
        for group, ids in zip(groups, table):
            spec = group.kv_cache_spec
            window = getattr(spec, "sliding_window", None)
            first = max(0, computed + 1 - window) if window else 0
            for layer in group.layer_names:
                if is_state(spec):
                    self.step_state(name, layer, ids, marks, computed, scheduled)
                    continue
                self.read(name, layer, ids, marks, first, computed)
                for at, inside, tokens in self.runs(layer, computed, computed + scheduled):
                    self.marks(layer, ids[at], inside)[:] = self.right(layer, marks[tokens])

    def right(self, layer, marks):
        """What the places of these tokens must have."""
        if not self.by_head:
            return marks[:, None]
        heads = self.layers[layer].num_kv_heads
        first = self.rank // self.copies * heads
        numbers = np.arange(first, first + heads, dtype=np.uint64)
        return marks[:, None, None] + numbers[None, :, None]

    def runs(self, layer, low, high):
        """Tokens [low, high) by blocks: the block's number, the tokens in it, the tokens of the request."""
        size = self.layers[layer].block_size
        for at in range(low // size, -(-high // size)):
            begin, end = max(low, at * size), min(high, (at + 1) * size)
            if begin < end:
                yield at, slice(begin - at * size, end - at * size), slice(begin, end)

    def read(self, name, layer, ids, marks, first, computed):
        for at, inside, tokens in self.runs(layer, first, computed):
            found = self.marks(layer, ids[at], inside)
            wrong = (found != self.right(layer, marks[tokens])).reshape(len(found), -1).any(axis=1)
            assert not wrong.any(), (
                f"{name}, rank {self.rank}, {layer}: token {tokens.start + int(wrong.argmax())} of "
                f"{computed} cached ones is wrong ({int(wrong.sum())} of {len(wrong)} in block {at})")
            self.seen["read"] += len(wrong)

    def step_state(self, name, layer, ids, marks, computed, scheduled):
        size = self.layers[layer].block_size
        if computed:
            found = int(self.marks(layer, ids[(computed - 1) // size], None)[0])
            right = int(marks[computed - 1])
            assert found == right, f"{name}, {layer}: the state at token {computed} is wrong"
            self.seen["states"] += 1
        self.marks(layer, ids[(computed + scheduled - 1) // size], None)[0] = marks[-1]

    def transfer(self, plan):
        """What the connector does in a step behind the forward pass; returns its part of the output."""
        from vllm.v1.outputs import KVConnectorOutput

        if not plan.has_sync_kv_loads:
            self.connector.start_load_kv(None)
        self.connector.wait_for_save()
        done = self.connector.get_transfer_results(plan.finished_req_ids)
        output = KVConnectorOutput(
            finished_sending=done.finished_sending, finished_recving=done.finished_recving,
            failed_recving=done.failed_recving,
            invalid_block_ids=self.connector.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=self.connector.build_connector_worker_meta())
        self.connector.clear_connector_metadata()
        return output


class Stepper:
    """One engine without a model. `layers` maps names to vLLM's KV cache specs."""

    def __init__(self, config, layers, blocks, layout="LBHNC", by_head=False, copies=1):
        from vllm.config import set_current_vllm_config
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core import kv_cache_utils
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
        from vllm.v1.structured_output import StructuredOutputManager

        config.cache_config.num_gpu_blocks_override = blocks
        config.cache_config.kv_cache_layout = layout
        register_all_kvcache_specs(config)
        with set_current_vllm_config(config):
            ranks = config.parallel_config.world_size
            worker_configs = kv_cache_utils.get_kv_cache_configs(config, [layers] * ranks, [1 << 33] * ranks)
            self.cache_config = kv_cache_utils.generate_scheduler_kv_cache_config(worker_configs)
            config.cache_config.num_gpu_blocks = self.cache_config.num_blocks
            config.cache_config.block_size = min(
                group.kv_cache_spec.block_size for group in self.cache_config.kv_cache_groups)
            scheduler_size, hash_size = kv_cache_utils.resolve_kv_cache_block_sizes(self.cache_config, config)
            alignment = kv_cache_utils.resolve_cache_hit_alignment_tokens(
                self.cache_config, config, scheduler_size, hash_size)
            for each in (*worker_configs, self.cache_config):
                each.kv_cache_layout = layout
                each.hash_block_size = hash_size
                each.cache_hit_alignment_tokens = alignment
            self.scheduler = Scheduler(
                vllm_config=config, kv_cache_config=self.cache_config, block_size=scheduler_size,
                structured_output_manager=StructuredOutputManager(config), hash_block_size=hash_size)
            self.workers = []
            for rank, each in enumerate(worker_configs):
                of_rank = copy.copy(config)
                of_rank.parallel_config = copy.copy(config.parallel_config)
                of_rank.parallel_config.rank = rank
                connector = KVConnectorFactory.create_connector(of_rank, KVConnectorRole.WORKER, each)
                self.workers.append(Worker(connector, each, layers, rank, by_head, copies))
        hash_function = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        kv_cache_utils.init_none_hash(hash_function)
        self.hasher = kv_cache_utils.get_request_block_hasher(hash_size, hash_function)
        self.hash_size = hash_size
        self.layers = layers
        self.aggregator = KVOutputAggregator(len(self.workers))
        self.groups = self.cache_config.kv_cache_groups
        self.requests, self.marks, self.count = {}, {}, 0
        self.cached = {}
        self.seen = collections.Counter()

    # ---- steps

    def step(self, before_update=lambda: None):
        """before_update: what happens between the workers' end and the scheduler's, as aborts do."""
        from vllm.v1.outputs import ModelRunnerOutput

        plan = self.scheduler.schedule()
        for worker in self.workers:
            meta = copy.deepcopy(plan.kv_connector_metadata)  # each has its own, as behind a pipe
            worker.connector.handle_preemptions(meta)
            worker.connector.bind_connector_metadata(meta)
            if plan.has_sync_kv_loads:
                worker.connector.start_load_kv(None)
        self.seen["loads within a step"] += plan.has_sync_kv_loads
        computed = {each.req_id: each.num_computed_tokens for each in plan.scheduled_new_reqs}
        for name, count in computed.items():
            self.cached.setdefault(name, count)
        running = plan.scheduled_cached_reqs
        computed.update(zip(running.req_ids, running.num_computed_tokens))
        names, sampled = [], []
        for name, scheduled in plan.num_scheduled_tokens.items():
            request, end = self.requests[name], computed[name] + scheduled
            marks = self.marks[name].of(request.all_token_ids, end)
            table = self.scheduler.kv_cache_manager.get_block_ids(name)
            for worker in self.workers:
                worker.forward(name, self.groups, table, marks, computed[name], scheduled)
            names.append(name)
            sampled.append([int(marks[-1] % 500) + 3] if end == request.num_tokens else [])
        self.seen["preempted"] += len(plan.preempted_req_ids or ())
        outputs = [ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled, kv_connector_output=worker.transfer(plan)) for worker in self.workers]
        before_update()
        self.scheduler.update_from_output(plan, self.aggregator.aggregate(outputs))
        self.seen["steps"] += 1
        if not names:
            time.sleep(0.001)  # only transfers are under way: lets their threads have the interpreter

    def add(self, ids, tokens=4, **more):
        """A request; returns its name. `more` goes to vLLM's Request."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self.count += 1
        name = f"request {self.count}"
        params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
        params.update_from_generation_config({}, None)
        self.requests[name] = Request(name, ids, params, None, block_hasher=self.hasher, **more)
        # Content depends on what separates requests beside tokens.
        parts = (more.get("cache_salt"), getattr(more.get("lora_request"), "lora_name", None))
        self.marks[name] = Marks(hash(parts) % (1 << 64) if any(parts) else 0)
        self.scheduler.add_request(self.requests[name])
        return name

    def finish(self, limit=300):
        """Steps until no request is left and all stores are over."""
        connector, last = self.scheduler.connector, time.monotonic() + limit
        while time.monotonic() < last:
            if not self.scheduler.has_unfinished_requests() and not connector.has_pending_push_work():
                return
            self.step()
        raise AssertionError(f"not over after {limit} s, {self.seen['steps']} steps")

    def run(self, ids, tokens=4, **more):
        """Runs one request alone; returns how many tokens it had cached."""
        name = self.add(ids, tokens, **more)
        self.finish()
        return self.cached[name]

    def reset(self, connector=False):
        return self.scheduler.reset_prefix_cache(reset_connector=connector)

    def close(self):
        for worker in self.workers:
            worker.connector.shutdown()
        self.scheduler.shutdown()
