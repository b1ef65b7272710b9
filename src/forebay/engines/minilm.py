"""The embedding model all-MiniLM-L6-v2: texts to token ids, token ids to unit vectors of 384 numbers.

Knows no HTTP and no queue.  Weights are int8, arithmetic is float32, so a text's vector does not depend on
what else is in its batch.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from forebay.engines.model import EngineRefused
from forebay.engines.weights import MINILM_ONNX, MINILM_TOKENIZER, find_packaged_file

DIMENSIONS: Final = 384
TOKENS_MAX: Final = 256  #: `max_seq_length` of the model's own configuration, [CLS] and [SEP] included
CHARS_MAX: Final = 262_144  #: of a text are read; 256 tokens need so many only if most of it is blank
_CHARS_AT_ONCE: Final = 8192
_WORD_CHARS_MAX: Final = 256  # more than any word that is not [UNK] has; a longer one is one token anyway

TokenIds = Sequence[int]
Vectors = Any  #: a numpy array of float32, one row of `DIMENSIONS` numbers for each text


class Embedder(Protocol):
    """What an embedding server needs of a model."""

    @property
    def vocabulary(self) -> int:
        """Token ids run from 0 to one less."""
        ...

    def encode(self, text: str) -> tuple[TokenIds, bool]:
        """Token ids with the special ones, and whether the text was cut."""
        ...

    def complete(self, ids: TokenIds) -> tuple[TokenIds, bool]:
        """A caller's own token ids, made like those of `encode`."""
        ...

    def embed(self, batch: Sequence[TokenIds]) -> Vectors:
        """One unit vector for each sequence."""
        ...


class MiniLM:
    """all-MiniLM-L6-v2 on ONNX Runtime.  `embed` and `encode` may run in different threads at a time."""

    def __init__(self, *, weights: Path, tokenizer: Path, threads: int = 1) -> None:
        """Raises EngineRefused when a library or a file is missing or broken."""
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read by the library when it is first used
        try:
            import numpy
            import onnxruntime
            import tokenizers
        except ImportError as error:
            raise EngineRefused(f"{error}. Run `pip install forebay[embedded]`.") from None
        self._numpy: Any = numpy
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        # Threads that wait by spinning starve whatever shares the cores.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # An arena keeps the memory of the largest batch ever seen.
        options.enable_cpu_mem_arena = False
        try:
            self._session: Any = onnxruntime.InferenceSession(
                str(weights), options, providers=["CPUExecutionProvider"]
            )
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # noqa: BLE001  both libraries raise their own, and bare `Exception`
            raise EngineRefused(f"the weights at {weights} can't be loaded: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        first, last = self._tokenizer.token_to_id("[CLS]"), self._tokenizer.token_to_id("[SEP]")
        if first is None or last is None:
            raise EngineRefused(f"{tokenizer} is no tokenizer of this model: it lacks [CLS] or [SEP].")
        self._first: int = first
        self._last: int = last

    @property
    def vocabulary(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> tuple[TokenIds, bool]:
        """Token ids of a text, [CLS] and [SEP] included, at most `TOKENS_MAX` of them.

        A long text is read only as far as its first tokens go: those of a prefix are those of the whole, but
        for the word at the cut.
        """
        chars = _CHARS_AT_ONCE
        while True:
            prefix = text[:chars]
            # As a batch of one, because only that lets other threads run meanwhile.
            (encoding,) = self._tokenizer.encode_batch([prefix], add_special_tokens=False)
            wanted = TOKENS_MAX - 2
            whole = len(prefix) == len(text)
            if (
                whole
                or chars >= CHARS_MAX
                or (len(encoding.ids) > wanted and encoding.offsets[wanted][1] < chars - _WORD_CHARS_MAX)
            ):
                ids = encoding.ids[:wanted]
                return [self._first, *ids, self._last], not whole or len(encoding.ids) > wanted
            chars = min(chars * 4, CHARS_MAX)

    def complete(self, ids: TokenIds) -> tuple[TokenIds, bool]:
        """Puts [CLS] and [SEP] around token ids that lack them, and cuts what is too long."""
        inner = list(ids)
        if inner and inner[0] == self._first:
            del inner[0]
            if inner and inner[-1] == self._last:
                del inner[-1]
        wanted = TOKENS_MAX - 2
        return [self._first, *inner[:wanted], self._last], len(inner) > wanted

    def embed(self, batch: Sequence[TokenIds]) -> Vectors:
        """The mean of the last layer over a text's tokens, scaled to length 1."""
        np = self._numpy
        longest = max(map(len, batch))
        ids = np.zeros((len(batch), longest), np.int64)  # 0 is [PAD]
        mask = np.zeros_like(ids)
        for row, sequence in enumerate(batch):
            ids[row, : len(sequence)] = sequence
            mask[row, : len(sequence)] = 1
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        (hidden,) = self._session.run(["last_hidden_state"], feed)
        weights = mask[:, :, None].astype(np.float32)
        mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return mean / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)


def load_minilm(threads: int) -> MiniLM:
    """The model from its packages, which are found without being imported.

    Raises:
        EngineRefused: something is missing or broken.
    """
    return MiniLM(
        weights=find_packaged_file(MINILM_ONNX),
        tokenizer=find_packaged_file(MINILM_TOKENIZER),
        threads=threads,
    )
