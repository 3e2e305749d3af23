"""One vLLM engine in a process of its own, told what to do over a socket.

    engine_process.py FD SETTINGS

SETTINGS is JSON: the arguments of `vllm.LLM`. Each line read from FD is a JSON object with `op` and its
arguments; each gets one line as the answer, `{"ok": ...}` or `{"error": ...}`. A request carries tokens,
never text, and is decoded greedily, so answers of two engines can be compared.
"""
import json
import socket
import sys
import traceback


class Engine:
    def __init__(self, settings):
        from vllm import LLM

        loras = settings.pop("loras", {})
        events = settings.pop("kv_events_config", None)
        if events:
            from vllm.config import KVEventsConfig
            settings["kv_events_config"] = KVEventsConfig(**events)
        transfer = settings.pop("kv_transfer_config", None)
        if transfer:
            from vllm.config import KVTransferConfig
            settings["kv_transfer_config"] = KVTransferConfig(**transfer)
        self.llm = LLM(**settings)
        self.loras = {}
        for number, (name, path) in enumerate(sorted(loras.items()), start=1):
            from vllm.lora.request import LoRARequest
            self.loras[name] = LoRARequest(name, number, path)
        self.next = 0

    @staticmethod
    def sampling(request):
        from vllm import SamplingParams
        return SamplingParams(max_tokens=request.get("tokens", 8), temperature=0, detokenize=False,
                              ignore_eos=True, extra_args=request.get("extra_args"))

    @staticmethod
    def prompt(request):
        if "embeds" in request:  # a seed, how many, how wide
            import torch
            seed, count, width = request["embeds"]
            generator = torch.Generator().manual_seed(seed)
            prompt = dict(prompt_embeds=torch.randn((count, width), generator=generator))
        else:
            prompt = dict(prompt_token_ids=request["ids"])
        if request.get("salt"):
            prompt["cache_salt"] = request["salt"]
        return prompt

    @staticmethod
    def said(output):
        metrics, tokens = output.metrics, list(output.outputs[0].token_ids)
        began, ended = (getattr(metrics, name, None) for name in ("first_token_ts", "last_token_ts"))
        step = (ended - began) / (len(tokens) - 1) if began and ended and len(tokens) > 1 else None
        return dict(tokens=tokens, cached=output.num_cached_tokens, reason=output.outputs[0].finish_reason,
                    first=getattr(metrics, "first_token_latency", None), step=step)

    def generate(self, requests):
        loras = [self.loras.get(each.get("lora")) for each in requests]
        results = self.llm.generate(
            [self.prompt(each) for each in requests], [self.sampling(each) for each in requests],
            use_tqdm=False, lora_request=loras if any(loras) else None)
        return [self.said(each) for each in results]

    def generate_and_abort(self, requests, abort, after):
        """Steps all requests; those at the indexes of `abort` are aborted after `after` steps with output."""
        engine = self.llm.llm_engine
        names = []
        for each in requests:
            self.next += 1
            names.append(f"stepped-{self.next}")
            engine.add_request(names[-1], self.prompt(each), self.sampling(each))
        finished, steps = {}, 0
        while engine.has_unfinished_requests():
            outputs = engine.step()
            steps += bool(outputs)
            for each in outputs:
                if each.finished:
                    finished[each.request_id] = self.said(each)
            if steps == after and abort:
                engine.abort_request([names[i] for i in abort])
                abort = []
        return [finished.get(name) for name in names]

    def reset(self, connector=False):
        return self.llm.reset_prefix_cache(reset_connector=connector)

    def metrics(self):
        return [dict(name=each.name, labels=dict(each.labels), value=getattr(each, "value", None))
                for each in self.llm.get_metrics()]

    def call(self, name, arguments):
        """A method of `LLM` itself."""
        getattr(self.llm, name)(**arguments)

    def stop(self):
        self.llm.llm_engine.engine_core.shutdown()


def main():
    connection = socket.socket(fileno=int(sys.argv[1]))
    lines = connection.makefile("rw")
    engine = None

    def answer(**what):
        lines.write(json.dumps(what) + "\n")
        lines.flush()

    try:
        engine = Engine(json.loads(sys.argv[2]))
        answer(ok="ready")
    except BaseException as failure:
        traceback.print_exc()
        answer(error=f"{type(failure).__name__}: {failure}")
        return
    for line in lines:
        asked = json.loads(line)
        try:
            answer(ok=getattr(engine, asked.pop("op"))(**asked))
        except Exception as failure:
            traceback.print_exc()
            answer(error=f"{type(failure).__name__}: {failure}")


if __name__ == "__main__":
    main()
