"""Make a model of half a million parameters that calls tools, in about a minute on one core.

`python tiny_model.py FOLDER CONVERSATIONS`, in the environment of the engine: it learns the conversations of a JSON
file by heart, so that it ends its answers and calls tools; what it samples at temperature 1 varies.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

STEPS, BATCH, SEED = 240, 1, 11
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
ANSWER = "<|im_start|>assistant\n"


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer that was made from `texts`."""
    raw = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex("[0-9]"), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=SPECIAL, initial_alphabet=alphabet)
    raw.train_from_iterator(texts, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.add_tokens(MARKS, special_tokens=False)
    made.chat_template = Path(__file__).with_name("chat_template.jinja").read_text().strip()
    return made


def train(model: Qwen3ForCausalLM, rows: list[list[int]], answer: list[int]) -> float:
    """Train on rows of ids, mostly on what follows the ids of `answer`. Return the last loss."""
    draw = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    loss = torch.tensor(0.0)
    for _ in range(STEPS):
        chosen = [rows[at] for at in torch.randint(len(rows), (BATCH,), generator=draw).tolist()]
        width = max(map(len, chosen))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in chosen])
        weights = torch.tensor([_weights(row, answer) + [0.0] * (width - len(row)) for row in chosen])
        logits = model(ids).logits[:, :-1].flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return loss.item()


def _weights(row: list[int], answer: list[int]) -> list[float]:
    """Return the weight of each id in the loss: 1 in an answer with its end, little elsewhere."""
    weights, size = [0.02] * len(row), len(answer)
    for start in [at + size for at in range(len(row) - size) if row[at : at + size] == answer]:
        for at in range(start, len(row)):
            weights[at] = 1.0
            if row[at] == SPECIAL.index("<|im_end|>"):
                break
    return weights


def main() -> None:
    """Make the model, and save it with its tokenizer."""
    folder, conversations = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    plain = [json.dumps(conversations, ensure_ascii=False), ANSWER]
    tokenizer = make_tokenizer(plain)
    texts = [
        tokenizer.apply_chat_template(item["messages"], tools=item["tools"], tokenize=False)
        for item in conversations
    ]
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    loss = train(model, [tokenizer.encode(text) for text in texts], tokenizer.encode(ANSWER))
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = sum(item.numel() for item in model.parameters())
    print(f"{size:,} parameters, {len(tokenizer):,} tokens, loss {loss:.3f}")


if __name__ == "__main__":
    main()
