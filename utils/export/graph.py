"""Export of a Transformer as three ONNX graphs: its encoder, a step of its decoder, and its output.

They are traced from the network itself, so that an edited layer is exported as it is; their weights lie in one file.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from const.token import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from layers.mask import padding_mask
from layers.multi_head_attention import KeyValue
from layers.probe import recorded_calls, recorded_weights
from models.transformer import Transformer, TransformerState
from utils.command import first_line, needing_group, page_template
from utils.export import CARD, refuse_difference
from utils.export.engine import TranslatorSettings
from utils.file import write_json, write_text
from utils.load import Run
from utils.search.forced import attentions
from utils.text.tokenizer import SentencePieceTokenizer
from utils.text.words import WORDS
from utils.training.checkpoint import rounded

with needing_group("export"):
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper
    from onnx.external_data_helper import set_external_data
    from onnxscript import optimizer

GRAPHS, WEIGHTS, FACTS = ("encoder", "decoder", "output"), "weights.bin", "translator.json"
QUANTIZATIONS = "float32", "int8"
# Session options for weights of 8 bits: computed once as floats when a graph is loaded, not in every step
FOLDED = {"session.disable_quant_qdq": "1"}

# The letters of the shapes are those of layers/__init__.py: W rows of each of N sentences, R = N W; P rows and t
# positions of the past. These are any number; here are those of the example that is traced. Of sizes of 0 and 1 torch
# would take the graph to be for these alone.
_ANY = {"N": 2, "S": 3, "W": 4, "T": 2, "P": 3, "t": 2}
_ALIGNMENT = 64  # bytes
_LARGE = 1024  # bytes from which on a tensor that is no weight lies in the file of weights, too
_COMPARED = 12  # positions
_SPECIAL = {"pad_id": PAD_ID, "unk_id": UNK_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}


def _shapes(text: str) -> dict[str, str]:
    return dict(each.split(": ") for each in text.split(", "))


class _Graph(nn.Module):
    """A part of a network: its inputs and outputs in their order, each with its shape."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model


class _Encoder(_Graph):
    inputs = _shapes("src: N S, heads: Le H")
    outputs = _shapes("source: Ld 2 N H S K, attention: Le N H S S")

    def forward(self, src: Tensor, heads: Tensor) -> tuple[Tensor, Tensor]:
        with _scaled(attentions(self.model)["encoder"], heads) as weights:
            state = self.model.before(self.model.encode(src))
        return _stacked(state.source), torch.stack(weights)


class _Decoder(_Graph):
    inputs = _shapes(
        "tgt: N W T, src: N S, source: Ld 2 N H S K, past: Ld 2 P H t K, rows: N W, self_heads: Ld H, cross_heads: Ld H"
    )
    outputs = _shapes(
        "states: Ld R T D, present: Ld 2 R H t+T K, self_attention: Ld R H T t+T, cross_attention: Ld R H T S"
    )

    def forward(
        self,
        tgt: Tensor,
        src: Tensor,
        source: Tensor,
        past: Tensor,
        rows: Tensor,
        self_heads: Tensor,
        cross_heads: Tensor,
    ) -> tuple[Tensor, ...]:
        past = past.index_select(2, rows.flatten())
        source_kv, past_kv = (tuple(KeyValue(*kv) for kv in both) for both in (source, past))
        state = TransformerState(source_kv, padding_mask(src, PAD_ID), past_kv)
        kinds = attentions(self.model)
        with (
            recorded_calls(self.model.decoder) as calls,
            _scaled(kinds["decoder"], self_heads) as own,
            _scaled(kinds["cross"], cross_heads) as cross,
        ):
            _, state = self.model.decode(tgt.flatten(0, 1), state)
        # the rows of a sentence attend to its source side by side, as (N, H, W T, S)
        seen = torch.stack(cross).unflatten(3, tgt.shape[1:]).transpose(2, 3).flatten(1, 2)
        states = torch.stack([output for _, (output, _) in calls])
        return states, _stacked(state.past), torch.stack(own), seen


class _Output(_Graph):
    inputs = _shapes("states: L R T D")
    outputs = _shapes("log_probs: L R T V")

    def forward(self, states: Tensor) -> Tensor:
        return self.model.output(self.model.decoder_norm(states)).log_softmax(-1, dtype=torch.float32)


@contextmanager
def _scaled(attentions: Sequence[nn.Module], factors: Tensor) -> Iterator[list[Tensor]]:
    """Within the block, multiply what each head of these attentions mixes by a factor (L, H), and list the weights."""
    with recorded_weights(attentions) as weights, ExitStack() as afterwards:
        for attention, factor in zip(attentions, factors, strict=True):

            def scale(_module: object, _inputs: object, output: tuple[Tensor, Tensor], factor: Tensor = factor) -> Any:
                return output[0] * factor[:, None, None], output[1]

            kernel = cast(nn.Module, attention.attention)
            afterwards.callback(kernel.register_forward_hook(scale).remove)
        yield weights


def _stacked(kvs: Sequence[KeyValue]) -> Tensor:
    return torch.stack([torch.stack(kv) for kv in kvs])


Traced = dict[str, dict[str, onnx.ModelProto]]  # graphs, by how their network is made, whatever its weights are


def write_graphs(
    run: Run, folder: Path, quantization: str | None = None, traced: Traced | None = None
) -> dict[str, onnx.ModelProto]:
    """Write into an existing folder all that an ONNX runtime needs to translate; return the graphs, and keep them."""
    if quantization not in (None, *QUANTIZATIONS):
        raise ValueError(f"quantization={quantization}: ONNX files have {' or '.join(QUANTIZATIONS)}")
    model, tokenizers, config = run.transformer, run.tokenizers, run.config
    if model.bert is not None:
        raise ValueError("a BERT as encoder has no ONNX graph here: export to safetensors, or a run without model.bert")
    parts = _Encoder(model), _Decoder(model), _Output(model)
    traced, made = {} if traced is None else traced, f"{model.config} {model}"
    if made not in traced:
        traced[made] = {name: _traced(part) for name, part in zip(GRAPHS, parts, strict=True)}
    graphs = traced[made]
    write_network(graphs, model, folder, quantization)
    tokenizers.save(folder)
    if (run.folder / WORDS).is_file():
        shutil.copyfile(run.folder / WORDS, folder / WORDS)
    name, longest = run.folder.resolve().name, model.config.max_length
    facts = asdict(TranslatorSettings(name, *config.data.languages, run.window, longest, config.search)) | {
        "tags": list(tokenizers.tags),
        "text_tags": tokenizers.text_tags,
        "is_joint": tokenizers.is_joint,
        "vocab": [len(tokenizers.src), len(tokenizers.tgt)],
        "quantization": quantization or "float32",
        **_SPECIAL,
        **_sizes(model),
    }
    write_json(folder / FACTS, facts)
    has_pieces = isinstance(tokenizers.tgt, SentencePieceTokenizer)
    card = page_template(Path(__file__).with_name("onnx.md"))
    write_text(folder / CARD, card.render(facts, has_pieces=has_pieces, graphs=dict(zip(GRAPHS, parts, strict=True))))
    return graphs


def write_network(
    graphs: Mapping[str, onnx.ModelProto], model: Transformer, folder: Path, quantization: str | None = None
) -> None:
    """Write graphs with the weights that their model has now; tracing, which takes a minute, need not be repeated."""
    _write(graphs, model, folder)
    _refuse_difference(model, folder)  # of exact weights: rounded ones would hide a small difference
    if quantization == "int8":
        _write(graphs, model, folder, in_int8=True)


def _sizes(model: Transformer) -> dict[str, int]:
    c = model.config
    sizes = {"Le": c.n_encoder_layers, "Ld": c.n_decoder_layers, "H": c.n_heads, "K": c.d_model // c.n_heads}
    return sizes | {"D": c.d_model, "V": len(model.output.weight)}


def _traced(part: _Graph) -> onnx.ModelProto:
    sizes = {"2": 2, "L": 2, "R": 2} | _sizes(part.model) | _ANY
    example, any_size = {}, {}
    for name, shape in part.inputs.items():
        size = [sizes[letter] for letter in shape.split()]
        example[name] = torch.full(size, 1) if name in ("src", "tgt", "rows") else torch.randn(size)
        dims = enumerate(shape.split())
        any_size[name] = {i: torch.export.Dim.DYNAMIC for i, letter in dims if letter in {*_ANY, "L", "R"}}
    for name in ("torch.onnx", "torch.fx.experimental.symbolic_shapes"):  # what they warn of is refused, or no matter
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with torch.no_grad(), redirect_stderr(StringIO()):  # of what it refuses, torch prints the graph
            program = torch.export.export(part.eval(), (), example, dynamic_shapes=any_size, strict=False)
            names: dict[str, Any] = {"input_names": [*part.inputs], "output_names": [*part.outputs]}
            made: Any = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False, **names)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"this network has no ONNX graph ({first_line(error)}): give --to safetensors") from error
    # Matrices keep their place in the file where no product of theirs is computed in advance
    optimizer.optimize_ir(made.model, should_fold=lambda node: False if node.op_type == "Transpose" else None)
    proto = made.model_proto
    del proto.graph.value_info[:]
    for each in (*proto.graph.node, proto.graph, proto):
        each.ClearField("metadata_props")  # stack traces with paths of this machine
        each.ClearField("doc_string")
    for values, shapes in ((proto.graph.input, part.inputs), (proto.graph.output, part.outputs)):
        for value in values:
            for dim, letter in zip(value.type.tensor_type.shape.dim, shapes[value.name].split(), strict=True):
                if not dim.dim_value:
                    dim.dim_param = letter
    return proto


def _write(graphs: Mapping[str, onnx.ModelProto], model: Transformer, folder: Path, in_int8: bool = False) -> None:
    """Write graphs and the weights of their model, shared ones once; matrices as integers with a scale for each row."""
    weights = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    places: dict[tuple[Any, ...], int] = {}  # the same for all weights of a network, whichever of them are equal
    with (folder / WEIGHTS).open("wb") as file:
        for name, graph in graphs.items():
            proto = onnx.ModelProto()
            proto.CopyFrom(graph)
            arrays = {tensor.name: (numpy_helper.to_array(tensor), None) for tensor in graph.graph.initializer}
            arrays |= {each: (weights[each].numpy(), weights[each].data_ptr()) for each in arrays if each in weights}
            for matrix in [each for each in arrays if in_int8 and each in weights and weights[each].ndim == 2]:
                parts = f"{matrix}.int8", f"{matrix}.scale"
                integers, scale = rounded(weights[matrix])
                _, place = arrays.pop(matrix)
                arrays |= zip(parts, ((integers.numpy(), place), (scale[:, 0].numpy(), place)), strict=True)
                proto.graph.node.insert(0, helper.make_node("DequantizeLinear", parts, [matrix], axis=0))
            proto.graph.ClearField("initializer")
            for each, (array, place) in arrays.items():
                tensor = numpy_helper.from_array(array, each)
                if len(raw := tensor.raw_data) >= _LARGE or place:
                    key = place or raw, array.dtype
                    if key not in places:
                        file.write(bytes(-file.tell() % _ALIGNMENT))
                        places[key] = file.tell()
                        file.write(raw)
                    set_external_data(tensor, WEIGHTS, places[key], len(raw))
                    tensor.ClearField("raw_data")
                proto.graph.initializer.append(tensor)
            onnx.save(proto, folder / f"{name}.onnx")


class Graphs:
    """The graphs of a folder, loaded to be run on one processor; integers are made floats at once."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        for name, value in FOLDED.items():
            options.add_session_config_entry(name, value)
        where = ["CPUExecutionProvider"]
        self.sessions = {
            name: onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=where) for name in GRAPHS
        }

    def run(self, name: str, **given: NDArray[Any]) -> list[NDArray[np.float32]]:
        """Return the outputs of a graph; where no factors of heads are given, all are 1."""
        inputs = {each.name: each.shape for each in self.sessions[name].get_inputs()}
        ones = {each: np.ones(shape, np.float32) for each, shape in inputs.items() if each not in given}
        return self.sessions[name].run(None, given | ones)


def _refuse_difference(model: Transformer, folder: Path) -> None:
    """Run the graphs as a search does: several positions at first, then one."""
    ids = torch.arange(min(_COMPARED, model.config.max_length))[None] % 3 + UNK_ID
    with torch.no_grad():
        expected = model(ids, ids).log_softmax(-1)

    def compute() -> list[float]:
        src = ids.numpy()
        try:
            graphs, found = Graphs(folder), []
            source, _ = graphs.run("encoder", src=src)
            past = source[:, :, :, :, :0]
            for tgt in src[:, :-1], src[:, -1:]:
                rows = np.zeros((1, 1), np.int64)
                step = {"tgt": tgt[None], "src": src, "source": source, "past": past, "rows": rows}
                states, past, *_ = graphs.run("decoder", **step)
                found.append(graphs.run("output", states=states[-1:])[0][0])
        except Exception as error:  # those of onnxruntime have no other kind in common
            raise RuntimeError(first_line(error)) from error
        return np.concatenate(found, 1).ravel().tolist()

    refuse_difference("onnxruntime", expected.flatten().tolist(), compute)
