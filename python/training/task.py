"""The task: two numbers are added. A program says whether an answer is right.

Numbers are written with the lowest digit first, in which order sums are made."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

PAD, END, BEGIN, PLUS, EQUALS = range(5)
DIGIT = 5  # the token of 0; those of the others follow
VOCABULARY = 32  # more than is used: loaders pad it, models are of a handy size

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """Sums of two numbers of so many digits."""

    digits: int

    @property
    def prompt_tokens(self) -> int:
        """How long every prompt is."""
        return 2 * self.digits + 3

    @property
    def response_tokens(self) -> int:
        """How long an answer can be: a digit more than the numbers have, and its end."""
        return self.digits + 2

    @property
    def prompts(self) -> int:
        """How many different prompts there are."""
        return int(100**self.digits)

    def prompt(self, index: int) -> Tokens:
        """The question of an index."""
        left, right = divmod(index, 10**self.digits)
        return (BEGIN, *self._digits(left), PLUS, *self._digits(right), EQUALS)

    def answer(self, index: int) -> Tokens:
        """What is right, with its end."""
        return (*_tokens(str(sum(divmod(index, 10**self.digits)))), END)

    def reward(self, index: int, response: Sequence[int]) -> float:
        """1 for what is right, from the first token to the end, else 0."""
        return float(tuple(response) == self.answer(index))

    def _digits(self, number: int) -> Tokens:
        return _tokens(str(number).zfill(self.digits))


def _tokens(text: str) -> Tokens:
    return tuple(DIGIT + int(letter) for letter in reversed(text))


def batches(task: Task, seed: int, prompts: int, epoch: int) -> list[list[int]]:
    """The indices of the prompts of each step of an epoch; every epoch has the same, so that the
    first and the last can be compared."""
    chosen = random.Random(f"prompts {seed}").sample(range(task.prompts), prompts * epoch)
    return [chosen[step * prompts : (step + 1) * prompts] for step in range(epoch)]


def sample_seed(seed: int, step: int, prompt: int, sample: int) -> int:
    """The seed that a response is drawn with: it depends on nothing else, so a response that was
    lost is drawn again as it was."""
    return random.Random(f"sample {seed} {step} {prompt} {sample}").getrandbits(62)
