#!/usr/bin/env python3
"""Compares tokens with those of Hugging Face's tokenizers and of SentencePiece.

    check_tokenizers.py PIPETRAIN [LINES]

Vocabularies are trained on generated text. Of each, 10,000 (or LINES) random lines and as many adversarial ones become
tokens in both programs: invalid UTF-8, combining marks, emoji with joiners, very long words, control and bidirectional
characters, texts in NFC and NFD, special tokens inside a text. The libraries know different versions of Unicode. Left
out are characters that Unicode 14 does not assign, and those few that the reference classifies or normalizes in another
way than Unicode 14, nearly all of them new since its tables were made. Exit code 1 if a token differs, 77 without the
libraries.
"""

import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import numpy as np

try:
    import sentencepiece
    import tokenizers
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
except ImportError:
    print("skipped: tokenizers or sentencepiece is not installed")
    sys.exit(77)

GPT2_END, CHAT = "<|endoftext|>", "<|im_start|>"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
WORDS = ("the of and to in that was his he it with is for as had you not be her on at by which have or from this him but "
         "all she they were my are me one their so an said them we who would been will no when there if more out up into do "
         "any your what has man could other than our some very time upon about may its only now like little then can should "
         "It's I'll don't we're You've HE'S naïve café Zürich façade Ångström œuvre élève").split()
SCRIPTS = ["привет мир это хорошо не было", "γειά σου κόσμε είναι καλό", "مرحبا بالعالم هذا جيد", "שלום עולם זה טוב",
           "नमस्ते दुनिया यह अच्छा है", "你好世界这是好的中文文字", "こんにちは世界カタカナ", "안녕하세요 세계 한국어",
           "สวัสดีชาวโลก", "İstanbul ISPARTA ıssız ŞİŞLİ ẞtraße", "Tiếng Việt rất đẹp"]


def is_white(c):
    return c in "\t\n\v\f\r \x85" or unicodedata.category(c) in ("Zs", "Zl", "Zp")


def known_to_the_reference():
    """The characters of Unicode 14 that the reference's tables treat as Unicode 14 does."""
    def bert(**steps):
        off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
        return normalizers.BertNormalizer(**off | steps).normalize_str

    clean, strip, words = bert(clean_text=True), bert(strip_accents=True), pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    compose, decompose, compatible = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str

    def agrees(c):
        kind, form = unicodedata.category(c), unicodedata.normalize
        blank = " " if is_white(c) and (kind != "Cc" or c in "\t\n\r") else "" if kind in ("Cc", "Cf") or c == "\ufffd" else c
        alone = kind[0] == "P" or (c.isascii() and c.isprintable() and not c.isalnum() and c != " ")
        return (clean(c) == blank and compatible(c) == form("NFKD", c) and
                strip(c) == "".join(x for x in form("NFD", c) if unicodedata.category(x) != "Mn") and
                [word for word, _ in words(f"a{c}b")] == (["a", "b"] if is_white(c) else ["a", c, "b"] if alone else [f"a{c}b"]) and
                all(decompose(text) == form("NFD", text) and compose(text) == form("NFC", text)
                    for text in (f"a{mark}{c}" for mark in "\u0301\u0334\u0323")))

    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    known = [c for c in assigned if agrees(c)]
    print(f"{len(assigned) - len(known)} of {len(assigned)} characters are left out", flush=True)
    # Of those that Unicode 3.2 had, some have changed their category since.
    old = [c for c in set(assigned) - set(known) if unicodedata.ucd_3_2_0.category(c) != "Cn"]
    assert len(known) > 0.99 * len(assigned) and len(old) < 10, old
    return known


ASSIGNED = known_to_the_reference()
KNOWN = set(ASSIGNED)
MARKS = [c for c in ASSIGNED if unicodedata.combining(c)]
SPACES = [c for c in ASSIGNED if c.isspace() or unicodedata.category(c) in ("Zs", "Zl", "Zp")] + ["\u180e", "\u200b", "\ufeff"]
CONTROLS = [c for c in ASSIGNED if unicodedata.category(c) in ("Cc", "Cf")]
EMOJI = ["👨‍👩‍👧‍👦", "👩🏽‍🚀", "🏳️‍🌈", "🇨🇭", "1️⃣", "☺️", "❤️‍🔥", "👍🏿", "🫠"]
SPECIALS = [GPT2_END, CHAT, "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "</s>", "<s>", "<unk>", "<x>", "<0x41>", "▁", "##ing", "Ġ", "Ċ"]


def random_line(rng):
    parts = []
    for _ in range(rng.randint(1, 20)):
        kind = rng.random()
        if kind < 0.6:
            word = rng.choice(WORDS)
            parts.append(rng.choice([word, word.capitalize(), word.upper()]))
        elif kind < 0.75:
            parts.append(rng.choice(rng.choice(SCRIPTS).split()))
        elif kind < 0.85:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 9))))
        else:
            parts.append("".join(rng.choice(".,;:!?()[]{}'\"-–—/\\@#$%^&*_+=<>|~`") for _ in range(rng.randint(1, 4))))
    return "".join(p + rng.choice([" ", " ", " ", "  ", ", ", ". ", "\n", "\t", ""]) for p in parts)


def adversarial_line(rng):
    def characters(pool, most):
        return "".join(rng.choice(pool) for _ in range(rng.randint(1, most)))

    pieces = [lambda: characters(ASSIGNED, 8), lambda: rng.choice("aeiouAEIOUnN한中") + characters(MARKS, 6),
              lambda: rng.choice(EMOJI), lambda: characters(SPACES, 4), lambda: characters(CONTROLS, 3),
              lambda: rng.choice(WORDS) * rng.randint(1, 60), lambda: rng.choice(SPECIALS),
              lambda: " " * rng.randint(1, 30) + rng.choice(["", "\n", "\r\n"]), lambda: rng.choice(WORDS),
              lambda: unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), rng.choice(SCRIPTS + WORDS)),
              lambda: rng.choice(["'S", "'Ll", "'ſ", "’s", "'", "''s"]), lambda: characters("0123456789٣४Ⅷ½²", 8)]
    return "".join(rng.choice(pieces)() for _ in range(rng.randint(1, 10)))


def broken_line(rng):
    """Bytes of a line, of which some are damaged."""
    line = bytearray((adversarial_line(rng) if rng.random() < 0.5 else random_line(rng)).encode())
    for _ in range(rng.randint(0, 6)):
        at = rng.randrange(len(line) + 1)
        change = rng.random()
        if change < 0.4:
            line[at:at] = bytes(rng.choice([0x80, 0xbf, 0xc0, 0xc3, 0xe2, 0xed, 0xa0, 0xf0, 0xf4, 0x90, 0xfe, 0xff]) for _ in range(rng.randint(1, 4)))
        elif change < 0.7:
            del line[at:at + rng.randint(1, 2)]
        else:
            line[at:at] = rng.choice([b"\xe2\x96", b"\xf0\x9f\x91", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\xe0\x80\x80"])
    line = bytes(line).replace(b"\n", b" ").replace(b"\r", b" ")
    # Damage may make other characters.
    return line if line and KNOWN.issuperset(line.decode("utf-8", "replace")) else broken_line(rng)


def train_byte_level(folder, corpus, name, splitter, normalizer=None, digits=None, prefix_space=False, post=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    steps = []
    if digits is not None:
        steps.append(pre_tokenizers.Digits(individual_digits=digits))
    if splitter:
        steps.append(pre_tokenizers.Split(Regex(splitter), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=splitter is None))
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=3000, special_tokens=[GPT2_END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_special_tokens([AddedToken(CHAT, lstrip=True, rstrip=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<x>", single_word=True, normalized=True), AddedToken("very ", normalized=True)])
    if post:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{GPT2_END} $A", special_tokens=[(GPT2_END, 0)])
    tokenizer.save(str(folder / f"{name}.json"))
    return folder / f"{name}.json", tokenizer


def train_word_pieces(folder, corpus, name, lower, strip=None):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=strip)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=3000, special_tokens=specials, show_progress=False))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / f"{name}.json"))
    return folder / f"{name}.json", tokenizer


def bert_vocabulary(folder, tokenizer, name, lower):
    """The same words as a vocab.txt, read by the reference for that."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    path = folder / f"{name}.txt"
    path.write_text("".join(word + "\n" for word, _ in words))
    return path, tokenizers.implementations.BertWordPieceTokenizer(str(path), lowercase=lower)


def train_sentence_piece(folder, corpus, name, **settings):
    (folder / "corpus.txt").write_text("".join(" ".join(line.split()) + "\n" for line in corpus))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "corpus.txt"), model_prefix=str(folder / name), vocab_size=2500, minloglevel=2,
        character_coverage=0.98, max_sentence_length=10000, hard_vocab_limit=False, **settings)
    processor = sentencepiece.SentencePieceProcessor()
    processor.Load(str(folder / f"{name}.model"))
    return folder / f"{name}.model", processor


def reference_ids(reference, line):
    """`line`: text or bytes."""
    if isinstance(reference, sentencepiece.SentencePieceProcessor):
        ids, end = reference.EncodeAsIds(line), reference.eos_id()
    else:
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
        ids, end = reference.encode(text).ids, reference.token_to_id(GPT2_END) if reference.token_to_id(GPT2_END) is not None else reference.token_to_id("[SEP]")
    return ids if ids and ids[-1] == end else ids + [end]


def tokens_of(program, data, tokenizer, *more):
    out = data.with_suffix(".bin")
    done = subprocess.run([program, "data", "convert", str(data), "--tokenizer", str(tokenizer), "--text-layout", "pack", *more,
                           "-o", str(out), "--overwrite", "--quiet"], capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"exit code {done.returncode} with {tokenizer.name}: {done.stderr[-2000:]}")
    content = out.read_bytes()
    return np.frombuffer(content[1024:], "<u2" if content[:4] == (20240520).to_bytes(4, "little") else "<u4").tolist()


def compare(program, what, path, reference, lines, data, *more):
    found = tokens_of(program, data, path, *more)
    expected = [reference_ids(reference, line) for line in lines]
    at = wrong = 0
    first = None
    for line, ids in zip(lines, expected):
        if found[at:at + len(ids)] != ids and first is None:
            first = (line, ids, found[at:at + len(ids)])
        at += len(ids)
    holds = first is None and at == len(found)
    print(f"{'ok    ' if holds else 'FAILED'}  {path.name}: {what}, {len(lines)} lines, {at} tokens", flush=True)
    if not holds:
        print(f"        {first[0]!r}\n        expected {first[1]}\n        found    {first[2]}" if first else f"        {len(found)} tokens")
    return holds


def main(program, count):
    rng = random.Random(7)
    corpus = [random_line(rng) for _ in range(20000)]
    fine = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uncased, uncased_reference = train_word_pieces(folder, corpus, "uncased", True)
        cased, cased_reference = train_word_pieces(folder, corpus, "cased", False)
        kinds = [
            train_byte_level(folder, corpus, "gpt2", None),
            train_byte_level(folder, corpus, "roberta", None, prefix_space=True),
            train_byte_level(folder, corpus, "llama3", LLAMA3, post=True),
            train_byte_level(folder, corpus, "qwen", QWEN, normalizer=normalizers.NFC()),
            train_byte_level(folder, corpus, "o200k", O200K),
            train_byte_level(folder, corpus, "digits", None, digits=True),
            train_byte_level(folder, corpus, "compatible", None, normalizer=normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()]), digits=False),
            (uncased, uncased_reference), (cased, cased_reference), train_word_pieces(folder, corpus, "accents", True, False),
            bert_vocabulary(folder, uncased_reference, "uncased-vocab", True), bert_vocabulary(folder, cased_reference, "cased-vocab", False),
            train_sentence_piece(folder, corpus, "unigram", model_type="unigram"),
            train_sentence_piece(folder, corpus, "unigram-symbols", model_type="unigram", user_defined_symbols=["<x>", "very ", "▁the"], split_by_number=False),
            train_sentence_piece(folder, corpus, "llama2", model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False),
            train_sentence_piece(folder, corpus, "bpe", model_type="bpe", user_defined_symbols=["<x>"], treat_whitespace_as_suffix=True),
        ]
        sets = []
        for what, make in [("random", random_line), ("adversarial", adversarial_line)]:
            lines = [make(rng) for _ in range(count)]
            path = folder / f"{what}.jsonl"
            path.write_text("".join(json.dumps({"text": line}, ensure_ascii=rng.random() < 0.5) + "\n" for line in lines))
            sets.append((what, lines, path, []))
        lines = [broken_line(rng) for _ in range(count)]
        (folder / "broken.txt").write_bytes(b"".join(line + b"\n" for line in lines))
        sets.append(("invalid UTF-8", lines, folder / "broken.txt", ["--text-document", "line"]))
        for path, reference in kinds:
            for what, lines, data, more in sets:
                fine &= compare(program, what, path, reference, lines, data, *more)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()), int(sys.argv[2]) if len(sys.argv) > 2 else 10000)
