from tests.tiny import TEXT, tokenizers
from utils.text.tokenizer import every_token, id_of_each


def test_each_id_has_a_token_and_each_token_its_id() -> None:
    tokenizer = tokenizers().src
    assert every_token(tokenizer)[:4] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(every_token(tokenizer)) == len(tokenizer)
    (ids,) = tokenizer.encode(TEXT.src[:1])
    assert [id_of_each(tokenizer)[token] for token in tokenizer.tokens(ids)] == ids
