"""Cases of engines that start again with other settings of the model: what the blocks' values depend on."""
import json
import os
import shutil
import subprocess
import sys

from cases_units import tokens, unit, whole
from fixtures import QUIET, write_model
from lab import BLOCK, case, offloading, prompt


def check_settings(lab, first, others):
    """What an engine of the settings `first` stored, it finds after a restart, and none of `others` does."""
    ids = tokens("settings", 700)
    engine = lab.stepper(volumes=lab.volumes(), model="one name", settings=first)
    assert engine.run(ids) == 0
    engine.close()
    for other in others:
        engine = lab.stepper(volumes=lab.volumes(), model="one name", settings=other)
        assert engine.run(ids) == 0, f"{other} has blocks of {first}"
        engine.close()
    engine = lab.stepper(volumes=lab.volumes(), model="one name", settings=first)
    assert engine.run(ids) == whole(700, 32), f"{first} does not find its own blocks"
    engine.close()


def copy_of_model(lab, name):
    return shutil.copytree(lab.lab.model, lab.folder / name)


@unit("1")
def restarted_with_other_overrides(lab):
    """`--hf-overrides` of the same weights: other positions, other norms."""
    def scaled(factor):
        return dict(hf_overrides=dict(rope_parameters=dict(
            rope_type="yarn", rope_theta=10000.0, factor=factor, original_max_position_embeddings=2048)))
    check_settings(lab, scaled(2.0), [scaled(4.0), {}, dict(hf_overrides=dict(rms_norm_eps=0.01))])


@unit("1")
def restarted_with_another_quantization(lab):
    """Weights that are quantized while they load."""
    check_settings(lab, dict(dtype="bfloat16"), [dict(dtype="bfloat16", quantization="fp8")])


@unit("1")
def restarted_with_dummy_weights(lab):
    """Weights that no file has: drawn from a seed."""
    check_settings(lab, dict(load_format="dummy", seed=1), [dict(load_format="dummy", seed=2), {}])


@unit("1")
def restarted_with_a_drafting_model(lab):
    """A draft model's layers are in the blocks: other weights of it are other blocks."""
    drafts = [copy_of_model(lab, f"draft {i}") for i in range(2)]
    [weights] = drafts[1].glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)

    def drafting(path):
        return dict(speculative_config=dict(method="draft_model", model=str(path), num_speculative_tokens=2))
    check_settings(lab, drafting(drafts[0]), [drafting(drafts[1])])


NAMES = """
import json
import sys
from stepper import engine_config
from ashlar._vllm_fingerprint import values_of
model, connector, settings = json.loads(sys.argv[1])
print("NAMES", json.dumps([values_of(engine_config(model, connector, **each)) for each in settings]))
"""


@case("1")
def settings_have_one_name_in_every_process(lab):
    """Two processes with two orders of chance: one name for one configuration, another for another."""
    overrides = dict(hf_overrides=dict(rope_parameters=dict(rope_type="linear", rope_theta=5e5, factor=2.0)))
    settings = [{}, overrides, dict(max_num_seqs=4, max_model_len=1024)]

    def names(seed):
        arguments = json.dumps([str(lab.model), offloading(lab.folder), settings])
        here = os.path.dirname(os.path.abspath(__file__))
        environment = {**os.environ, **QUIET, "PYTHONHASHSEED": str(seed),
                       "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
        ran = subprocess.run([sys.executable, "-c", NAMES, arguments], env=environment, capture_output=True,
                             text=True, check=False)
        found = [line for line in ran.stdout.splitlines() if line.startswith("NAMES ")]
        assert ran.returncode == 0 and found, ran.stderr[-3000:]
        return json.loads(found[0].removeprefix("NAMES "))
    plain, overridden, smaller = names(1)
    assert [plain, overridden, smaller] == names(2)
    assert plain != overridden
    assert plain == smaller, "what changes no value changes the name"


@case("1")
def restarted_with_another_revision(lab):
    """One name in the Hugging Face cache, two revisions of it."""
    hub = lab.fresh("hub")
    repository = hub / "models--ashlar--tiny"
    revisions = ["1" * 40, "2" * 40]
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revisions[0])
    shutil.copytree(lab.model, repository / "snapshots" / revisions[0])
    write_model(repository / "snapshots" / revisions[1], initializer_range=0.1, rms_norm_eps=0.01)
    folder, ids = lab.fresh("revisions"), prompt("revisions", 9)

    def cached(revision):
        environment = dict(HF_HOME=str(hub), HF_HUB_CACHE=str(hub))
        with lab.engine(offloading(folder), model="ashlar/tiny", revision=revision,
                        environment=environment) as engine:
            answer = engine.generate(ids)
            if revision == revisions[0]:
                lab.is_right(answer, ids, 8)
            return answer["cached"]
    assert cached(revisions[0]) == 0
    assert cached(revisions[1]) == 0, "blocks of another revision were used"
    assert cached(revisions[0]) == 9 * BLOCK
