#!/usr/bin/env python3
"""Compares training from raw text with PyTorch, and generated text with transformers.

    compare_text.py PIPETRAIN [STEPS]

A byte-level BPE of 1,000 tokens is trained on the licences that Debian installs. pipetrain trains a small GPT-2 from the
text itself, PyTorch the same network from the tokens of Hugging Face's library, with the same batches; bits per byte of
held-out text must agree to 2 %. Greedy continuations of random networks (GPT-2 and Llama, with fixed and with free
lengths) must be those of transformers. Needs torch, transformers, tokenizers, onnx, onnxscript.
"""

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

LENGTH, BATCH, VOCABULARY, END = 64, 16, 1000, "<|endoftext|>"
failures = 0


def check(what, holds):
    global failures
    failures += not holds
    print(f"{'ok    ' if holds else 'FAILED'}  {what}", flush=True)


def run(program, *arguments, cwd):
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=1800, cwd=cwd)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} from: {program} {' '.join(map(str, arguments))}\n{done.stderr[-3000:]}")
    return done.stdout


class Logits(torch.nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, input_ids):
        return self.network(input_ids=input_ids, use_cache=False).logits


def gpt2():
    torch.manual_seed(3)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=96, n_layer=2, n_head=4, resid_pdrop=0,
                                      embd_pdrop=0, attn_pdrop=0, attn_implementation="eager"))


def llama():
    torch.manual_seed(4)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
                                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                                        attn_implementation="eager", tie_word_embeddings=False))


def export(network, path, free_length):
    shapes = {0: "batch"} | ({1: "tokens"} if free_length else {})
    example = torch.randint(0, VOCABULARY, (2, LENGTH if not free_length else 48))
    torch.onnx.export(Logits(network).train(False), (example,), str(path), dynamic_shapes=(shapes,), dynamo=True, optimize=False)


def windows(ids):
    """Samples and the tokens that follow, as the stream is cut."""
    count = (len(ids) - 1) // LENGTH
    stream = torch.tensor(ids[:count * LENGTH + 1])
    return stream[:-1].view(count, LENGTH), stream[1:].view(count, LENGTH)


def train_in_pytorch(network, ids, steps):
    x, y = windows(ids)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    batches = math.ceil(len(x) / BATCH)
    for step in range(steps):
        first = step % batches * BATCH
        loss = torch.nn.functional.cross_entropy(network(input_ids=x[first:first + BATCH], use_cache=False).logits.flatten(0, 1),
                                                 y[first:first + BATCH].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def loss_of(network, ids):
    x, y = windows(ids)
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(network(input_ids=x, use_cache=False).logits.flatten(0, 1), y.flatten()).item()


def compare_training(program, folder, tokenizer, texts, steps):
    train, held = texts[:-3], texts[-3:]
    for name, part in (("train", train), ("held", held)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    ids = {name: [i for text in part for i in tokenizer.encode(text).ids + [tokenizer.token_to_id(END)]]
           for name, part in (("train", train), ("held", held))}
    network = gpt2()
    export(network, folder / "gpt2.onnx", False)
    run(program, "train", "gpt2.onnx", "--data", "train.jsonl", "--tokenizer", "tokenizer.json", "--no-shuffle", "--optimizer", "adam",
        "--weight-decay", 0, "--lr", "1e-3", "--lr-schedule", "constant", "--batch-size", BATCH, "--max-steps", steps, "--device", "cpu",
        "--gpus", 2, "--threads", 1, "-o", "trained.onnx", "--quiet", cwd=folder)
    found = json.loads(run(program, "eval", "trained.onnx", "--data", "held.jsonl", "--device", "cpu", "--json", cwd=folder))["loss"]
    before = loss_of(network, ids["held"])
    train_in_pytorch(network, ids["train"], steps)
    expected = loss_of(network, ids["held"])
    # Per byte of the text that the tokens stand for.
    per_byte = len(ids["held"]) / sum(len(text.encode()) for text in held) / math.log(2)
    check(f"bits per byte {found * per_byte:.4f}, PyTorch {expected * per_byte:.4f} (before training {before * per_byte:.4f}): "
          f"{100 * abs(found / expected - 1):.3f} % apart", abs(found / expected - 1) < 0.02)


def compare_greedy(program, folder, tokenizer):
    for name, make in (("gpt2", gpt2), ("llama", llama)):
        network = make().train(False)
        for free_length in (False, True):
            export(network, folder / "random.onnx", free_length)
            for prompt in ("The licence", "a", "You may copy and distribute verbatim copies of the Program's source code"):
                ids = torch.tensor([tokenizer.encode(prompt).ids])
                length = min(40, LENGTH - ids.shape[1])
                end = tokenizer.token_to_id(END)
                expected = network.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False,
                                            eos_token_id=end, pad_token_id=end)[0, ids.shape[1]:].tolist()
                out = run(program, "generate", "random.onnx", "--tokenizer", "tokenizer.json", "--prompt", prompt, "--max-tokens", length,
                          "--device", "cpu", "--json", cwd=folder)
                found = json.loads(out)["tokens"]
                check(f"{name}, {'free' if free_length else 'fixed'} length, {len(expected)} tokens after {prompt!r}",
                      found == [i for i in expected if i != end])


def main(program, steps):
    torch.set_num_threads(2)
    paths = sorted(path for path in Path("/usr/share/common-licenses").iterdir() if path.is_file() and not path.is_symlink())
    texts = [path.read_text(errors="replace") for path in paths]
    texts = [part for text in texts for part in text.split("\n\n\n")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], show_progress=False,
                                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tokenizer.save(str(folder / "tokenizer.json"))
        compare_greedy(program, folder, tokenizer)
        compare_training(program, folder, tokenizer, texts, steps)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()), int(sys.argv[2]) if len(sys.argv) > 2 else 400)
