import copy
import shutil

import pytest
import torch

from models.transformer import Transformer
from tests.tiny import MODEL, lively
from utils.training.compiled import compile_blocks


def test_every_block_is_compiled_and_nothing_else() -> None:
    net = lively(MODEL, 13, 13)
    compile_blocks(net)
    compiled = [name for name, part in net.named_modules() if part._compiled_call_impl is not None]
    assert compiled == ["encoder.0", "decoder.0", "decoder.1"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU")
def test_a_compiled_network_computes_the_same_and_is_copied_as_if_it_were_not() -> None:
    net = lively(MODEL, 13, 13)
    twin = copy.deepcopy(net)
    compile_blocks(twin)
    for shape in ((2, 5), (3, 7)):
        src = torch.randint(4, 13, shape, generator=torch.Generator().manual_seed(0))
        ours, theirs = (each(src, src.flip(1)) for each in (twin, net))
        torch.testing.assert_close(ours, theirs)
        gradients = (
            torch.autograd.grad(out.cos().sum(), list(each.parameters())) for out, each in ((ours, twin), (theirs, net))
        )
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    copied: Transformer = copy.deepcopy(twin)
    assert all(block._compiled_call_impl is None for block in copied.encoder)
