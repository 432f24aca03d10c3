import re
from pathlib import PurePosixPath

import pytest

from const.corpora import CORPORA, CorpusSpec

each_corpus = pytest.mark.parametrize("spec", CORPORA.values(), ids=CORPORA.keys())


@each_corpus
def test_every_file_has_a_place_of_its_own_and_a_well_formed_hash(spec: CorpusSpec) -> None:
    splits = (*spec.splits, *spec.extra)
    paths = [split.path(lang) for split in splits for lang in split.blobs]
    assert len(set(paths)) == 2 * len(splits)
    assert not any(PurePosixPath(path).is_absolute() or ".." in path for path in paths)
    hashes = [blob for split in splits for blobs in split.blobs.values() for blob in blobs]
    assert all(re.fullmatch("[0-9a-f]{40}", blob) for blob in hashes)


@each_corpus
def test_no_split_is_another_one(spec: CorpusSpec) -> None:
    splits = (*spec.splits, *spec.extra)
    for lang in spec.languages:
        seen = [blob for split in splits for blob in split.blobs[lang]]
        assert len(set(seen)) == len(seen)
    assert all(tuple(split.blobs) == spec.languages for split in splits)
