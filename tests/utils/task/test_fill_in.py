"""What a BERT fills in: networks that have learned nothing, one whose answer is known, and one of Hugging Face."""

import io
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import BertForMaskedLM, BertModel, PreTrainedModel

from const.token import BOS_ID, EOS_ID, SPECIAL_TOKENS, UNK_ID
from models.bert import BertForPreTraining
from tests import hugging_face
from tests.tiny import TEXT, tokenizers
from tests.utils.task.tiny_run import BERT, JAPANESE, bert_run, classifier_run, lively
from utils.command import run_command
from utils.run import find_run
from utils.task import bert as command_module
from utils.task.bert import MASK, Reader, fill_in
from utils.text.tokenizer import Tokenizer, TokenizerConfig, train_tokenizer

MASK_ID = len(JAPANESE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert_run(tmp_path_factory.mktemp("pickles"))


@pytest.fixture(scope="module")
def reader(folder: Path) -> Reader:
    return Reader.of_run(folder)


@torch.no_grad()
def test_candidates_are_the_likeliest_of_the_whole_networks_prediction(reader: Reader) -> None:
    ids = [BOS_ID, 7, MASK_ID, 9, 12, MASK_ID, EOS_ID]
    probs = reader.net(torch.tensor([ids])).tokens[0].softmax(-1)
    first, second = fill_in(reader.net, ids, MASK_ID, 4, never=[])
    for place, found in ((2, first), (5, second)):
        expected = sorted(enumerate(probs[place].tolist()), key=lambda pair: -pair[1])[:4]
        assert [token for token, _ in found] == [token for token, _ in expected]
        assert [p for _, p in found] == pytest.approx([p for _, p in expected], rel=1e-4)
    assert [token for token, _ in first] != [token for token, _ in second]


def test_a_token_that_may_not_stand_there_keeps_its_probability(reader: Reader) -> None:
    ids = [BOS_ID, 7, MASK_ID, 9, EOS_ID]
    (all_of_them,) = fill_in(reader.net, ids, MASK_ID, 99)
    assert len(all_of_them) == MASK_ID + 1
    assert sum(p for _, p in all_of_them) == pytest.approx(1)
    never = {token for token, _ in all_of_them[:3]}
    (rest,) = fill_in(reader.net, ids, MASK_ID, 99, never)
    assert rest == all_of_them[3:]


def test_special_tokens_bare_spaces_and_the_mask_are_no_text(reader: Reader) -> None:
    silent = {i for i, piece in enumerate(JAPANESE.tokens(range(MASK_ID))) if piece in {*SPECIAL_TOKENS, "▁"}}
    assert reader.silent == silent | {MASK_ID}
    assert len(silent) == 5


def pieces(reader: Reader, text: str) -> list[str]:
    every = [*reader.tokenizer.tokens(range(len(reader.tokenizer))), MASK]
    return [every[i] for i in reader.ids(text)]


def other(reader: Reader, tokenizer: Tokenizer) -> Reader:
    """The same for a text that is cut otherwise."""
    return reader._replace(tokenizer=tokenizer, mask=len(tokenizer), window=99)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc", "nfkc_cf"])
def test_text_around_masks_is_cut_as_within_a_sentence(reader: Reader, kind: str, normalization: str) -> None:
    config = TokenizerConfig(kind, 90, normalization=normalization)  # type: ignore[arg-type]
    reader = other(reader, train_tokenizer(config, [*TEXT.src, *TEXT.tgt]))

    def cut(text: str) -> list[str]:
        return reader.tokenizer.tokens(reader.tokenizer.encode([text])[0])

    assert pieces(reader, f"京都に{MASK}") == ["<s>", *cut("京都に"), MASK, "</s>"]
    (first, *behind) = cut("xに古い寺が")  # x is unknown
    assert first == "▁"
    assert pieces(reader, f"{MASK}に古い寺が") == ["<s>", MASK, *behind[1:], "</s>"]
    assert "▁" not in "".join(pieces(reader, f"京都に{MASK}寺が{MASK}。")[3:])
    # a space belongs to what stands behind it, be it hidden
    is_old = cut("There is old")[len(cut("There")) :]
    assert is_old[0].startswith("▁")
    expected = ["<s>", MASK, *is_old, MASK, MASK, "</s>"]
    assert pieces(reader, f"{MASK} is old {MASK} {MASK}") == expected
    assert pieces(reader, f" {MASK} is old {MASK}{MASK} ") == expected


def test_an_unknown_character_behind_a_mask_is_not_lost(reader: Reader) -> None:
    assert pieces(reader, f"{MASK}龍に{MASK}鳳龍。")[1:-1] == [MASK, "<unk>", "に", MASK, "<unk>", "。"]
    assert UNK_ID not in reader.ids(f"{MASK}に{MASK}。")


def test_where_the_network_expects_a_bare_space_it_is_asked_what_follows(reader: Reader, tmp_path: Path) -> None:
    space = token_of("▁")
    assert reader.space == space
    probs = [0.0] * (MASK_ID + 1)
    probs[space], probs[token_of("橋")] = 0.75, 0.25
    expecting = Reader.of_run(bert_run(tmp_path, probs))
    ids = [BOS_ID, MASK_ID, 7, MASK_ID, EOS_ID]
    asked = [BOS_ID, space, MASK_ID, 7, space, MASK_ID, EOS_ID]
    assert expecting.spaced(ids) == asked
    assert expecting._replace(window=7).spaced(ids) == asked
    assert expecting._replace(window=6).spaced(ids) == ids
    assert expecting._replace(space=None).spaced(ids) == ids
    with torch.no_grad():
        first, second = fill_in(reader.net, ids, MASK_ID, 1)
        reader = reader._replace(space=second[0].token)
        assert first[0].token != second[0].token
    assert reader.spaced(ids) == [BOS_ID, MASK_ID, 7, second[0].token, MASK_ID, EOS_ID]


def test_words_are_cut_at_spaces(reader: Reader) -> None:
    reader = other(reader, train_tokenizer(TokenizerConfig("word", min_freq=1), TEXT.tgt))
    assert (
        " ".join(pieces(reader, f"There is {MASK} old{MASK}in Uji.")) == f"<s> There is {MASK} old {MASK} in Uji. </s>"
    )


def test_the_text_is_filled_in_with_the_best(reader: Reader) -> None:
    reader = other(reader, tokenizers().tgt)
    net = BertForPreTraining(BERT, reader.mask + 1).eval()
    lively(net)
    ids = reader.ids(f"There {MASK} a {MASK}")
    found = fill_in(net, ids, reader.mask, 3, reader.silent)
    best = [row[0].token for row in found]
    places = [i for i, token in enumerate(ids) if token == reader.mask]
    whole = [best[places.index(i)] if i in places else token for i, token in enumerate(ids)]
    assert reader.filled(ids, found) == reader.tokenizer.decode([whole])[0]
    assert reader.filled(ids, found).startswith("There")
    assert MASK not in reader.filled(ids, found)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> object:
    monkeypatch.setattr(sys, "argv", ["fill_in", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        run_command("fill_in", command_module.main)
    return ended.value.code


def token_of(piece: str) -> int:
    return JAPANESE.tokens(range(MASK_ID)).index(piece)


def test_the_command_shows_what_the_network_finds_likely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probs = [0.0] * (MASK_ID + 1)
    probs[UNK_ID], probs[token_of("橋")], probs[token_of("川")] = 0.55, 0.325, 0.125  # never UNK
    newest = bert_run(tmp_path, probs)
    classifier_run(tmp_path)  # newer, and of another task
    monkeypatch.setattr(command_module, "find_run", partial(find_run, root=tmp_path))
    text = f"京都に{MASK}と{MASK}。"
    assert command(monkeypatch, text, f"{MASK}がある。", "--top", 2) == 0
    shown = capsys.readouterr()
    filled = JAPANESE.decode(JAPANESE.encode(["京都に橋と橋。"]))[0]
    assert shown.out.splitlines() == [
        filled,
        "  橋  32.5%  橋  32.5%",
        "  川  12.5%  川  12.5%",
        "橋がある。",
        "  橋  32.5%",
        "  川  12.5%",
    ]
    assert shown.err == ""
    assert command(monkeypatch, text, "--run", newest, "--top", 1) == 0
    assert capsys.readouterr().out.splitlines() == [filled, "  橋  32.5%  橋  32.5%"]


def test_lines_of_standard_input_are_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"京都に{MASK}がある。", f"{MASK}の寺"]
    assert command(monkeypatch, *lines, "--run", folder) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert command(monkeypatch, "--run", folder) == 0
    assert capsys.readouterr().out == expected
    assert len(expected.splitlines()) == 12


def test_a_line_that_cannot_be_filled_in_does_not_end_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = [f"京都に{MASK}がある。", f"{MASK}の寺"]
    long = f"寺寺寺寺寺寺寺寺寺{MASK}"
    assert command(monkeypatch, *fine, "--run", folder) == 0
    expected = capsys.readouterr().out
    lines = ["京都", fine[0], "", long, "  ", fine[1]]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    assert command(monkeypatch, "--run", folder) == 2
    shown = capsys.readouterr()
    assert shown.out == expected
    first, second, last = shown.err.splitlines()
    assert first.startswith(f"line 1: '京都' has no {MASK}: ")
    assert second.startswith("line 4: ")
    assert second.endswith(f"shorten '{long}'")
    assert last == "fill_in: error: 2 of the lines could not be filled in: see above"


def test_without_a_bare_space_the_network_is_not_asked_about_it(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(command_module, "fill_in", forbidden)
    ids = [BOS_ID, MASK_ID, 7, MASK_ID, EOS_ID]
    assert reader._replace(space=None).spaced(ids) == ids
    assert reader._replace(window=6).spaced(ids) == ids


def test_a_mistake_is_answered_with_a_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def complaint(*arguments: object) -> str:
        assert command(monkeypatch, *arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err.removeprefix("fill_in: error: ").strip()

    assert complaint("京都", "--run", folder) == f"'京都' has no {MASK}: write it where something is to be filled in"
    long = f"寺寺寺寺寺寺寺寺寺{MASK}"
    n = len(JAPANESE.encode(["寺寺寺寺寺寺寺寺寺"])[0]) + 3
    assert n > 12
    assert complaint(long, "--run", folder) == (
        f"{n} tokens, <s> and </s> included, are more than the 12 that the network reads: shorten '{long}'"
    )
    assert complaint(MASK, "--run", tmp_path / "none").startswith(f"no run {tmp_path / 'none'}: ")
    wrong = complaint(MASK, "--run", classifier_run(tmp_path))
    assert wrong.endswith("is of task classification, but masked_language is needed here")
    assert complaint(MASK, "--run", folder, "--top", 0) == "--top 0: give 1 or more"
    assert complaint(MASK, "--run", folder, "--hugging_face", folder).endswith("cannot be combined: give one of them")


PIECES = ["[PAD]", "[UNK]", "[MASK]", "[SEP]", "[CLS]", "kyoto", "is", "old", "##er", "a", "city", "京", "都", "は"]


def hugging_face_folder(kind: type[PreTrainedModel], folder: Path) -> Path:
    model = hugging_face.lively(kind, hugging_face.config(vocab_size=len(PIECES)))
    model.type(torch.float32).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    return folder


@torch.no_grad()
def test_a_bert_of_hugging_face_fills_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = hugging_face_folder(BertForMaskedLM, tmp_path / "bert")
    ids = [4, 5, 6, 2, 8, 3]  # [MASK]er is no word of theirs: what stands behind a mask is cut by itself
    reader = Reader.of_hugging_face(folder)
    assert reader.ids("Kyoto is [MASK]city 京") == [4, 5, 6, 2, 10, 11, 3]
    theirs = BertForMaskedLM.from_pretrained(folder)
    theirs.train(False)
    probs = theirs(torch.tensor([ids])).logits[0, 3].softmax(-1)
    (found,) = fill_in(reader.net, ids, reader.mask, 3, reader.silent)
    likely = [i for i in probs.argsort(descending=True).tolist() if i > 4][:3]
    assert [token for token, _ in found] == likely
    assert [p for _, p in found] == pytest.approx([probs[i].item() for i in likely], rel=1e-3)
    assert command(monkeypatch, "--hugging_face", folder, "kyoto is [MASK]", "--top", 1) == 0
    (best,), *_ = fill_in(reader.net, [4, 5, 6, 2, 3], 2, 1, reader.silent)
    assert capsys.readouterr().out.splitlines()[1] == f"  {PIECES[best.token]}  {best.probability:.1%}"


def test_a_bert_without_a_head_is_refused(tmp_path: Path) -> None:
    folder = hugging_face_folder(BertModel, tmp_path / "bert")
    with pytest.raises(ValueError, match=r"has no masked-language head: give a folder that BertForMaskedLM was"):
        Reader.of_hugging_face(folder)
