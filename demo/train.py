#!/usr/bin/env python3
"""Records a few real training steps: what a trainer would publish after each optimizer step.

    python3 -m venv VENV && VENV/bin/pip install -r demo/requirements.txt
    demo/fetch.sh BUILD_DIR
    VENV/bin/python demo/train.py BUILD_DIR/f32 OUT_DIR [--steps 6] [--seed 1]

Fine-tunes all-MiniLM-L6-v2 (a 6-layer BERT) on the questions and answers below and writes
OUT_DIR/step0 (the base) to OUT_DIR/step6, each a complete checkpoint directory in BF16.

The setting is that of mixed-precision reinforcement learning: master weights and Adam moments are
FP32, the learning rate is constant and small (1e-6), and what is exported is the master weights
rounded to BF16, which are also the weights that the forward pass uses. Most updates are too small
to reach another BF16 value, so few elements of the exported copy change in a step.

One thread and fixed seeds: a run on the same kind of CPU with the same PyTorch gives the same
bytes. Other CPUs may sum in another order and then differ in a few elements.
"""

import argparse
import json
import os
import random
import string
import sys
import warnings

warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # not needed here

import torch
import torch.nn.functional as F

import to_bf16

LEARNING_RATE = 1e-6
BATCH_PAIRS = 32
TEMPERATURE = 0.05  # of the similarities, as in the model's own training

PAIRS = [
    ("What is the capital of France?", "Paris has been the seat of the French state for long."),
    ("Why is the sky blue?", "Air scatters short waves of sunlight more than long ones."),
    ("How many planets orbit the Sun?", "The solar system has eight, Neptune the outermost."),
    ("Who wrote Hamlet?", "The Danish prince's tragedy is a play by Shakespeare."),
    ("What do bees make from nectar?", "Honey is stored in wax cells as food for the winter."),
    ("Which metal is liquid at room temperature?", "Mercury melts at minus thirty-nine."),
    ("What is the longest river in Africa?", "The Nile flows north through Sudan and Egypt."),
    ("How do plants gain energy?", "Photosynthesis turns light and air into sugar."),
    ("What causes the tides?", "The gravity of the Moon and the Sun pulls the oceans."),
    ("Who painted the Mona Lisa?", "Leonardo da Vinci worked on the portrait in Florence."),
    ("What is the boiling point of water?", "At sea level it turns to steam at 100 Celsius."),
    ("What is the largest ocean?", "The Pacific covers about a third of the Earth's surface."),
    ("What carries oxygen in the blood?", "Haemoglobin in red cells binds it in the lungs."),
    ("When did the Berlin Wall fall?", "The border opened on the night of 9 November 1989."),
    ("Which gas do we mostly breathe?", "Nitrogen makes up nearly four fifths of the atmosphere."),
    ("What is a prime number?", "It has exactly two divisors, one and itself."),
    ("Where do penguins live in the wild?", "They breed on southern coasts and Antarctic ice."),
    ("What is the currency of Japan?", "Prices in Tokyo and Osaka are given in yen."),
    ("Who discovered penicillin?", "Alexander Fleming noticed a mould that killed bacteria."),
    ("What is the fastest land animal?", "A cheetah sprints a hundred kilometres an hour."),
    ("How is glass made?", "Sand, soda ash and limestone are melted in a furnace."),
    ("What does DNA store?", "The order of four bases encodes how to build proteins."),
    ("Which is the highest mountain?", "Everest in the Himalayas rises to 8849 metres."),
    ("What is inflation?", "A general rise of prices lowers what money can buy."),
    ("How does a vaccine work?", "It trains the immune system to recognise a pathogen."),
    ("What is the hardest natural mineral?", "Diamond is carbon in a dense cubic lattice."),
    ("Who was the first person on the Moon?", "Neil Armstrong left Apollo 11 in July 1969."),
    ("What is bread leavened with?", "Yeast ferments sugar, and its gas makes the dough rise."),
    ("How does a compass find north?", "Its needle follows our planet's magnetic field."),
    ("What is an earthquake?", "Rock under stress slips and the ground shakes."),
    ("Who composed the Ninth Symphony with choir?", "Beethoven set Schiller's ode while deaf."),
    ("What do caterpillars become?", "After the pupa they emerge as butterflies or moths."),
    ("How long is a marathon?", "Runners cover a little over forty-two kilometres."),
    ("What is the speed of light?", "In vacuum it travels about 300000 kilometres each second."),
    ("Which organ filters the blood?", "The kidneys remove waste and excess water as urine."),
    ("What is coffee brewed from?", "The roasted seeds of a shrub are ground and steeped."),
    ("Where is Machu Picchu?", "The Inca citadel stands on a ridge in the Andes of Peru."),
    ("What is a leap year?", "Every fourth February has one more day, bar a few."),
    ("How do bats hunt in the dark?", "They send out ultrasound and listen to the echoes."),
    ("What is the main part of steel?", "It is iron with a little carbon and often chromium."),
    ("Who developed general relativity?", "Einstein saw gravity as curved spacetime in 1915."),
    ("What is a haiku?", "A Japanese poem of seventeen syllables in three lines."),
    ("Why do leaves turn red in autumn?", "Chlorophyll breaks down and other pigments show."),
    ("What is the deepest lake?", "Baikal in Siberia holds a fifth of all fresh water."),
    ("How does a refrigerator cool?", "A compressed fluid evaporates inside and takes up heat."),
    ("What is democracy?", "Citizens choose their government in free elections."),
    ("Which instrument has eighty-eight keys?", "A piano's hammers strike strings of steel."),
    ("What is the smallest bone?", "The stirrup in the middle ear is three millimetres long."),
    ("How do fish breathe?", "Gills draw oxygen from the water that passes them."),
    ("What is chess played on?", "A board of sixty-four squares, with sixteen pieces each."),
    ("Who built the pyramids of Giza?", "Egyptian workers raised the tombs for their pharaohs."),
    ("What is a black hole?", "Its gravity is so strong that not even light escapes."),
    ("Where does chocolate come from?", "Cocoa beans are fermented, dried, roasted and ground."),
    ("What is the Rosetta Stone?", "One decree in three scripts unlocked hieroglyphs."),
    ("How are rainbows formed?", "Raindrops refract and reflect sunlight into its colours."),
    ("What is an algorithm?", "A finite list of clear instructions that solves a problem."),
    ("Which planet has the largest rings?", "Saturn is circled by pieces of ice and rock."),
    ("What is salt made of?", "Sodium and chlorine form the white crystals on our tables."),
    ("How do vaccines reach remote villages?", "Cold boxes keep the doses chilled on the road."),
    ("What did Gutenberg invent?", "Movable type made books cheap all over Europe."),
    ("Why does ice float?", "Water expands when it freezes and becomes less dense."),
    ("What is the language of Brazil?", "Portuguese came with settlers in the sixteenth century."),
    ("How does a sailboat go upwind?", "It tacks in zigzags, with the keel resisting the drift."),
    ("What is a volcano?", "Molten rock rises through the crust and erupts as lava and ash."),
]


class Checkpoint:
    """A safetensors checkpoint directory: its tensors, and all that is needed to export copies."""

    def __init__(self, path):
        self.path = path
        with open(os.path.join(path, to_bf16.MODEL_FILE), "rb") as file:
            self.header, begin = to_bf16.read_header(file)
            file.seek(begin)
            data = bytearray(file.read())
        self.head, self.entries = to_bf16.bf16_layout(self.header)
        self.tensors = {}
        for name, entry in self.entries:
            dtype = {"F32": torch.float32, "I64": torch.int64}[entry["dtype"]]
            first, end = entry["data_offsets"]
            count = (end - first) // dtype.itemsize
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=first)
            self.tensors[name] = flat.reshape(entry["shape"])

    def export(self, published, path):
        """Writes the tensors `published` (by name) as the checkpoint directory `path`."""
        os.makedirs(path, exist_ok=True)
        to_bf16.copy_companions(self.path, path)
        with open(os.path.join(path, to_bf16.MODEL_FILE), "wb") as file:
            file.write(self.head)
            for name, _ in self.entries:
                tensor = published[name]
                data = bytearray(tensor.nbytes)
                torch.frombuffer(data, dtype=tensor.dtype).copy_(tensor.flatten())
                file.write(data)


class Tokenizer:
    """BERT's uncased WordPiece, for the plain ASCII text of this script."""

    def __init__(self, path):
        with open(os.path.join(path, "vocab.txt"), encoding="utf-8") as file:
            self.ids = {line.rstrip("\n"): number for number, line in enumerate(file)}

    def encode(self, text):
        assert text.isascii()
        for mark in string.punctuation:
            text = text.replace(mark, f" {mark} ")
        pieces = [piece for word in text.lower().split() for piece in self._split(word)]
        return [self.ids[piece] for piece in ["[CLS]", *pieces, "[SEP]"]]

    def _split(self, word):
        """The longest pieces of the vocabulary, from the left; all but the first begin with ##."""
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self.ids), None)
            if end is None:
                return ["[UNK]"]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces

    def batch(self, texts):
        """Returns (token ids, mask) of shape (texts, longest), padded with [PAD] = 0."""
        rows = [self.encode(text) for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        return ids, ids != 0


def embed(weights, config, ids, mask):
    """The model: BERT's encoder, the mean over a text's tokens, scaled to length one."""

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x, name):
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], scale, shift, config["layer_norm_eps"])

    texts, length = ids.shape
    heads = config["num_attention_heads"]
    x = F.embedding(ids, weights["embeddings.word_embeddings.weight"])
    x = x + weights["embeddings.position_embeddings.weight"][:length]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        query, key, value = (
            linear(x, f"{at}.attention.self.{part}").view(texts, length, heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(x.shape)
        x = x + linear(seen, f"{at}.attention.output.dense")
        x = norm(x, f"{at}.attention.output.LayerNorm")
        inner = F.gelu(linear(x, f"{at}.intermediate.dense"))
        x = norm(x + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    weight = mask[:, :, None].float()
    return F.normalize((x * weight).sum(1) / weight.sum(1), dim=1)


def contrastive_loss(weights, config, tokenizer, pairs):
    """Each question must be nearest to its own answer among all answers of the batch."""
    questions = embed(weights, config, *tokenizer.batch([question for question, _ in pairs]))
    answers = embed(weights, config, *tokenizer.batch([answer for _, answer in pairs]))
    return F.cross_entropy(questions @ answers.T / TEMPERATURE, torch.arange(len(pairs)))


def publish(master):
    """What the trainer exports: masters rounded to BF16; integer tensors as they are."""
    return {
        name: tensor.detach().to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in master.items()
    }


def train_step(master, published, optimizer, config, tokenizer, pairs):
    """One Adam step on the masters, with the gradient taken at the published BF16 weights."""
    live = {
        name: tensor.float().requires_grad_()
        for name, tensor in published.items()
        if tensor.is_floating_point()
    }
    loss = contrastive_loss(live, config, tokenizer, pairs)
    loss.backward()
    for name, tensor in live.items():
        master[name].grad = tensor.grad  # None where the loss does not reach: the pooler
    optimizer.step()
    return loss.item()


def count_changes(old, new):
    """Elements whose stored bits differ."""
    return sum(
        int((old[name].view(torch.int16) != new[name].view(torch.int16)).sum())
        for name in old
        if old[name].dtype == torch.bfloat16
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir", help="the F32 checkpoint directory that fetch.sh makes")
    parser.add_argument("out_dir", help="where step0, step1, ... are written")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1, help="draws the pairs of each batch")
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    batches = random.Random(options.seed)
    checkpoint = Checkpoint(options.model_dir)
    tokenizer = Tokenizer(options.model_dir)
    with open(os.path.join(options.model_dir, "config.json"), encoding="utf-8") as file:
        config = json.load(file)

    master = checkpoint.tensors
    trained = [tensor for tensor in master.values() if tensor.is_floating_point()]
    optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE)
    elements = sum(tensor.numel() for tensor in master.values())
    published = publish(master)
    checkpoint.export(published, os.path.join(options.out_dir, "step0"))

    print(f"{elements} elements, learning rate {LEARNING_RATE}, {BATCH_PAIRS} pairs per step")
    print("step    loss   changed    rate   index+value list")
    for step in range(1, options.steps + 1):
        pairs = batches.sample(PAIRS, BATCH_PAIRS)
        loss = train_step(master, published, optimizer, config, tokenizer, pairs)
        previous, published = published, publish(master)
        checkpoint.export(published, os.path.join(options.out_dir, f"step{step}"))
        changed = count_changes(previous, published)
        listing = 6 * changed / 1e6  # a 4-byte index and a 2-byte value each
        print(f"{step:4} {loss:7.4f} {changed:9} {changed / elements:7.3%} {listing:15.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
