r"""The published corpora that the project knows by name: where they come from, and how they are verified.

A file is identified by its git blob hash (SHA-1 of `blob <size>\0` + content), which `git hash-object FILE` prints.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

VERSION = "0.1.0"  # of Miyako; must match pyproject.toml


@dataclass(frozen=True)
class CorpusSpec:
    """A published corpus."""

    name: str  # of its folder under corpus/, too
    homepage: str
    url: str  # of its archive or, with `{file}` in it, of each individual file
    download_mb: float  # approximately
    licence: str
    text: str  # what kind of text it is
    languages: tuple[str, str]
    splits: tuple[str, str, str]  # paths of train, dev and test for `{lang}`, below the archive's top-level folders
    # lines of a path and the hashes that are accepted for it, or none if no hash of it is known; files of no split may
    # be absent
    hashes: str
    rebuilt: tuple[str, ...] = ()  # those of the hashes that are of a text extracted again from its source
    pre_tokenized: bool = False  # words are separated by spaces: BLEU takes them as they are (`tokenize none`)
    more_sets: Mapping[str, str] = field(default_factory=dict)  # further held-out texts, which may be absent

    @property
    def blobs(self) -> dict[str, list[str]]:
        """The accepted hashes of each file."""
        blobs: dict[str, list[str]] = {}
        for path, *accepted in map(str.split, self.hashes.strip().splitlines()):
            blobs.setdefault(path, []).extend(accepted)
        return blobs

    @property
    def needed(self) -> list[str]:
        """The files that the corpus must have to be complete."""
        return [split.format(lang=lang) for split in self.splits for lang in self.languages]

    @property
    def optional(self) -> list[str]:
        """The files of `more_sets`."""
        return [path.format(lang=lang) for path in self.more_sets.values() for lang in self.languages]


# Of KFTT's published training text two hashes are known, not which is whose, so either is accepted for either language.
# The third is of the same lines in the same order, extracted again from the corpus that KFTT is based on (NICT's Kyoto
# articles 2.01): a few characters differ from the published files, and results say so.
_KFTT = CorpusSpec(
    name="kftt",
    homepage="http://www.phontron.com/kftt",
    url="http://www.phontron.com/kftt/download/kftt-data-1.0.tar.gz",
    download_mb=99,
    licence="CC BY-SA 3.0",
    text="sentences of Wikipedia articles on Kyoto",
    languages=("ja", "en"),
    splits=("orig/kyoto-train.{lang}", "orig/kyoto-dev.{lang}", "orig/kyoto-test.{lang}"),
    hashes="""
        orig/kyoto-train.ja 334a63dca6f430d34028fec7a9f55ba6b977f6a5 5693e32a2eb93d6256335cbc7f7ee8de80d06f3c
        orig/kyoto-train.ja 89ae7dc16797826cafa6f15385e819549f56ffb5
        orig/kyoto-train.en 334a63dca6f430d34028fec7a9f55ba6b977f6a5 5693e32a2eb93d6256335cbc7f7ee8de80d06f3c
        orig/kyoto-train.en 1386b6f605f752cfc1d20e3b77d8c5eda560032a
        orig/kyoto-dev.ja 7b6d63e245fc8076614f0f88d5bbd91c073f0e29
        orig/kyoto-dev.en 855e6ba9b3da2fb4eb37fa19cbfd16cfc5d358b0
        orig/kyoto-test.ja 1ae56a0b65f8ff7d4a1d916d3057590147ce6aa3
        orig/kyoto-test.en 303139a56869ea54e3885ca52171ffb303278bfb
        orig/kyoto-tune.ja
        orig/kyoto-tune.en
        tok/kyoto-dev.ja b18c424d0def52050cc73d1c01aa8f404294b819
        tok/kyoto-dev.en 9a0c385b9de7731ef8784b26d92f713ba4ca019a
        tok/kyoto-test.ja 423e277c222bbfa53c2961d06d239d569fef3c3f
        tok/kyoto-test.en 58783eebbb417202ed7733201a9158aacd5203df
    """,
    rebuilt=("89ae7dc16797826cafa6f15385e819549f56ffb5", "1386b6f605f752cfc1d20e3b77d8c5eda560032a"),
    more_sets={"tune": "orig/kyoto-tune.{lang}"},
)

_TANAKA = CorpusSpec(
    name="tanaka",
    homepage="https://github.com/odashi/small_parallel_enja",
    url="https://github.com/odashi/small_parallel_enja/archive/refs/heads/master.tar.gz",
    download_mb=3,
    licence="CC BY 2.0 FR (the Tanaka Corpus, via Tatoeba)",
    text="short everyday sentences",
    languages=("ja", "en"),
    splits=("train.{lang}", "dev.{lang}", "test.{lang}"),
    hashes="""
        train.ja cf8b41970a97540aa9f7a2864283ab83349c63f4
        train.en a9d0b8f999f9598e4dbfd252c30f9b373e9726c2
        dev.ja caf9f24c9b7c862b65402ab631f11f3d706c0fa8
        dev.en b7ad37dbc7cf7e4cbe737d999f1a57f0a65c3ea6
        test.ja 42810f895885ddd53f3f6444582c173669dd516d
        test.en e77e504ddf37a6f4ec6682bff24f9d7e2c02c559
    """,
    pre_tokenized=True,
)

# the 2017 sets are of Elliott et al. 2017: Flickr, and the captions with ambiguous verbs of COCO
_MULTI30K_SETS = ("test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")

_MULTI30K = CorpusSpec(
    name="multi30k",
    homepage="https://github.com/multi30k/dataset",
    url="https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/{file}.gz",
    download_mb=1.4,
    licence="CC BY-NC-SA 4.0",
    text="captions of pictures",
    languages=("de", "en"),
    splits=("raw/train.{lang}", "raw/val.{lang}", "raw/test_2016_flickr.{lang}"),
    hashes="""
        raw/train.de 7d02bf503b2532d44dc9cc363e8dfe2abb68979b
        raw/train.en 22df3557dd2c5c1de872aee912091f5b60d29a18
        raw/val.de 47c32b692235ca8b73846ca8f28a391e72d1def2
        raw/val.en f94fad7adf84a7fa3a7c7763ad84fc85867515b2
        raw/test_2016_flickr.de d88e9b9ac4ef987880b96a68230f6157d74753e4
        raw/test_2016_flickr.en db68ab5b12b4b74fa08a3eea8e618b3f427732c6
        raw/test_2017_flickr.de 9022ee53fb09370c40c177a6367fc4e758da1266
        raw/test_2017_flickr.en 40936476586159240a05a42e5cf7202657bc8811
        raw/test_2017_mscoco.de cbfa9d8d78ad7266623c335b3c2afc24891c4624
        raw/test_2017_mscoco.en 5dae8d29bc46b0d0059973af6d63d7d16ae82703
        raw/test_2018_flickr.de d39144d873ebbfba4a8caafb7a4363951e1078cb
        raw/test_2018_flickr.en fe132c2a5ea58878e00cc86e11585032b5903cdd
    """,
    more_sets={name: f"raw/{name}.{{lang}}" for name in _MULTI30K_SETS},
)

# lower-cased, punctuation normalised, tokenised by Moses
_MULTI30K_TOK = replace(
    _MULTI30K,
    name="multi30k_tok",
    url="https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/{file}",
    download_mb=4.6,
    splits=("tok/train.lc.norm.tok.{lang}", "tok/val.lc.norm.tok.{lang}", "tok/test_2016_flickr.lc.norm.tok.{lang}"),
    hashes="""
        tok/train.lc.norm.tok.de 11b78d683a4b828112b7669db5cadad3fb4e85db
        tok/train.lc.norm.tok.en c32171861a73baa8e03addf4ce68a171e5accb8e
        tok/val.lc.norm.tok.de c6857bc2d0677816724f2b1824716561680a04b2
        tok/val.lc.norm.tok.en 92e57fca89d138f53e63344e060b1537447ee0c2
        tok/test_2016_flickr.lc.norm.tok.de d21afb3363f4d61e9fc5ef3044c903b44935d241
        tok/test_2016_flickr.lc.norm.tok.en 3cfeb6d491272cda612d6c22ff4ca428ba2bdd40
        tok/test_2017_flickr.lc.norm.tok.de 1cc4b76d5d2a9e19959342a1aefc8c24811e3170
        tok/test_2017_flickr.lc.norm.tok.en 142341a7677ba5429752a3f3e459bd6e734d4a25
        tok/test_2017_mscoco.lc.norm.tok.de fddf6a418c82b8ef5befe196d59d7899a1367596
        tok/test_2017_mscoco.lc.norm.tok.en 3604bae6f783d5a8d8fe523f1a1188bd9510a433
        tok/test_2018_flickr.lc.norm.tok.de 95f7a8e8c53a144bfe7fc4faf482ac861b5c03a5
        tok/test_2018_flickr.lc.norm.tok.en 226a86a81c2d3c52f4570521561ca6dd1634f83f
    """,
    pre_tokenized=True,
    more_sets={name: f"tok/{name}.lc.norm.tok.{{lang}}" for name in _MULTI30K_SETS},
)

CORPORA: dict[str, CorpusSpec] = {spec.name: spec for spec in (_KFTT, _TANAKA, _MULTI30K, _MULTI30K_TOK)}
