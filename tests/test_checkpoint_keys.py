"""Every key of a checkpoint's JSON files is read, has no effect, or is refused unless it has an implemented value.

The keys are the libraries' own lists: one that a release adds fails here until it is classified. What is classified is tried: a key
that is read or refused changes the result or raises an error that names it, and one without effect changes nothing.
"""

import inspect
import json
import re
from functools import partial

import pytest
import transformers
from model2vec.types import StaticModelConfig
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.base import model as base_model
from sentence_transformers.sentence_transformer import model as sentence_model
from sentence_transformers.sentence_transformer import modules as parts
from transformers import tokenization_utils_base, tokenization_utils_tokenizers
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from jaxdistill.checkpoints import modules
from jaxdistill.checkpoints.folder import save
from jaxdistill.checkpoints.model import labels_of, load_model, read_architecture
from jaxdistill.encoders import families, hugging_face

import encoder_cases as cases
from tiny_models import tiny_model, tiny_tokenizer, word_table

ODD = [[["?"]]]
"""A value that no key has."""


def words(text: str) -> set[str]:
    return set(text.split())


READ = {
    "config.json": words("""
        activation architectures attention_bias attention_dropout attention_probs_dropout_prob dim dropout embedding_dropout
        embedding_size head_dim hidden_act hidden_activation hidden_dim hidden_dropout_prob hidden_size id2label intermediate_size
        layer_norm_eps layer_types local_attention max_position_embeddings max_window_layers mlp_bias model_type n_heads n_layers
        norm_bias norm_eps num_attention_heads num_hidden_layers num_key_value_heads pad_token_id query_pre_attn_scalar
        relative_attention_num_buckets rms_norm_eps rope_parameters sliding_window type_vocab_size use_bidirectional_attention
        use_sliding_window vocab_size
    """),
    "modules.json": words("path type"),
    "config_sentence_transformers.json": words("default_prompt_name prompts"),
    "sentence_bert_config.json": words("do_lower_case max_seq_length"),
    "Pooling": words("pooling_mode"),
    "WeightedLayerPooling": words("layer_start num_hidden_layers"),
    "Dense": words("activation_function bias in_features out_features"),
    "LayerNorm": words("dimension"),
    "tokenizer_config.json": words("""
        add_bos_token add_eos_token add_prefix_space added_tokens_decoder additional_special_tokens auto_map bos_token cls_token
        do_lower_case eos_token errors extra_special_tokens keep_accents mask_token model_input_names model_max_length
        model_specific_special_tokens pad_token sep_token split_special_tokens strip_accents tokenize_chinese_chars tokenizer_class
        trim_offsets truncation_side unk_token
    """),
    "model2vec": words("max_length model_type normalize"),
}
"""Keys that are read, by file or module. In `tokenizer_config.json`, also those that transformers reads, which loads all tokenizers
but the simplest."""
WITHOUT_EFFECT = {
    # Numbers for classifiers' own training and for heads of other tasks; the ids of special tokens are the tokenizer's.
    "config.json": words("""
        _name_or_path _sliding_window_pattern bos_token_id chunk_size_feed_forward classifier_activation classifier_bias
        classifier_dropout classifier_dropout_prob classifier_pooling cls_token_id decoder_bias deterministic_flash_attn dtype
        eos_token_id final_logit_softcapping initializer_cutoff_factor initializer_range is_encoder_decoder label2id mask_token_id
        mlp_dropout output_attentions pretraining_tp problem_type qa_dropout return_dict sep_token_id seq_classif_dropout
        sinusoidal_pos_embds sparse_pred_ignore_index sparse_prediction summary_activation summary_last_dropout summary_type
        summary_use_proj tie_word_embeddings transformers_version use_cache
    """),
    "modules.json": words("idx kwargs name"),
    # Scores of pairs are sigmoids whatever `activation_fn` says, or logits if asked for.
    "config_sentence_transformers.json": words("__version__ activation_fn keep_in_fp32_modules requirements"),
    "sentence_bert_config.json": words("backend model_name_or_path unpad_inputs"),
    "Pooling": words("embedding_dimension"),
    "WeightedLayerPooling": words("embedding_dimension"),
    "Dropout": words("dropout"),
    "model2vec": words("""
        apply_pca apply_zipf architectures embedding_dtype head_config hidden_dim pooling seq_length sif_coefficient tokenizer_name
        vocabulary_quantization
    """),
}
TOKENIZER_WITHOUT_EFFECT = {
    "chat_control_tokens": ["a"], "chat_template": "a", "clean_up_tokenization_spaces": True, "max_length": 3, "is_local": False,
    "pad_to_multiple_of": 8, "pad_token_type_id": 1, "padding_side": "left", "processor_class": "a", "response_schema": {},
    "response_template": {}, "stride": 1, "truncation_strategy": "only_first", "unk_id": 5, "verbose": True,
    "name_or_path": "a", "local_files_only": False, "backend": "tokenizers", "files_loaded": [], "init_inputs": [],
}  # fmt: skip
"""Keys without effect, with another value than the usual one."""
MADE_BY_TRANSFORMERS = words("""
    _json_padding _json_truncation _spm_precompiled_charsmap gguf_file merges post_processor tokenizer tokenizer_file tokenizer_object
    tokenizer_padding tokenizer_truncation vocab vocab_file
""")
"""Arguments of tokenizers that are parsed files, and paths of files, which are not passed on."""
NOT_YET = words("fix_mistral_regex max_len")
"""Read by transformers alone: the words of a Mistral tokenizer with more than 100,000 entries, and the length in the oldest files."""


def unlike(read, path, key, *, at=None) -> bool:
    """Whether `read` gives something else, or raises an error that names the key, if it has an odd value in the file."""
    before, text = read(), path.read_text()
    content = json.loads(text)
    (content if at is None else content[at])[key] = ODD
    path.write_text(json.dumps(content))
    try:
        return read() != before
    except Exception:  # an error of a library, or a refusal: the key is read
        return True
    finally:
        path.write_text(text)


def check(keys, file, refused, reads_of, **options):
    """Compares the classes of keys, and what they do in each of `reads_of`: pairs of a function that reads and the path of a file."""
    same, read = WITHOUT_EFFECT.get(file, set()), READ.get(file, set()) | set(refused)
    assert not (new := keys - same - read) and not same & read, f"{file}: classify {sorted(new)}"
    for key in sorted(keys):
        found = [unlike(reader, path, key, **options) for reader, path in reads_of]
        assert any(found) == (key in read), f"{file}: {key}"


@pytest.mark.parametrize("family", sorted({name.partition(":")[0] for name in cases.CONFIGS}))
def test_config_json(tmp_path, family):
    variants = [name for name in cases.CONFIGS if name.partition(":")[0] == family]
    kind, readers = cases.CONFIGS[family][0], []
    for variant in variants:
        folder = tmp_path / variant
        cases.write_config(folder, variant)
        cases.edit_json(folder / "config.json", architectures=["XForSequenceClassification"], id2label={"0": "a"})
        readers.append(
            (partial(lambda at: (read_architecture(at), labels_of(str(at))), folder), folder / "config.json")
        )
    keys = {*kind().to_dict(), *inspect.signature(kind.__init__).parameters} - {"self", "output_hidden_states"}
    refused = hugging_face.QUANTISED | hugging_face.ENCODER | getattr(families.family(family), "READABLE", {})
    check(keys | hugging_face.QUANTISED.keys(), "config.json", refused, readers)


def test_modules_and_their_configs(tmp_path):
    cases.write_encoder(tmp_path / "bert", "bert")
    transformer = parts.Transformer(str(tmp_path / "bert"), config_kwargs={"output_hidden_states": True})
    chain = [transformer, parts.WeightedLayerPooling(32, num_hidden_layers=4, layer_start=1), parts.Pooling(32)]
    chain += [parts.Dense(32, 32), parts.LayerNorm(32), parts.Dropout(), parts.Normalize()]
    folder = tmp_path / "model"
    SentenceTransformer(modules=chain, device="cpu").save(str(folder))

    def read():
        model = load_model(str(folder))
        return model.definition, model.max_length, model.prompts, model.tokenizer.to_str()

    assert read()[0].pooling.layers == "last4"
    names = ("module_input_name", "module_output_name")
    refused = {"Pooling": ["include_prompt"], "Dense": [*names, "use_residual"], "Normalize": names}
    for number, module in enumerate(chain[1:], start=1):
        kind = type(module).__name__
        path = folder / f"{number}_{kind}" / "config.json"
        check(set(module.config_keys), kind, refused.get(kind, ()), [(read, path)])
    keys = {*transformer.config_keys, *inspect.signature(parts.Transformer.__init__).parameters} - {"self"}
    refused = {*modules.TEXT_SETTINGS, *modules.TRANSFORMER_SETTINGS[False]}
    check(keys | {"model_args"}, "sentence_bert_config.json", refused, [(read, folder / "sentence_bert_config.json")])
    source = "".join(map(inspect.getsource, (base_model, sentence_model, inspect.getmodule(CrossEncoder))))
    keys = set(re.findall(r'model_config(?:\.get\(|\[)"(\w+)"', source))
    assert {"similarity_fn_name", "truncate_dim"} <= keys
    name = "config_sentence_transformers.json"
    check(keys | json.loads((folder / name).read_text()).keys(), name, modules.GENERAL, [(read, folder / name)])
    keys = set(re.findall(r'module_config(?:\.get\(|\[)"(\w+)"', source))
    check(keys, "modules.json", (), [(read, folder / "modules.json")], at=1)


def test_tokenizer_config(tmp_path):
    """transformers, too, gives the same ids whatever the keys without effect say."""
    bases = tokenization_utils_base.PreTrainedTokenizerBase, tokenization_utils_tokenizers.TokenizersBackend
    sources = map(inspect.getsource, (bases[0].__init__, bases[0]._from_pretrained, bases[1].__init__))
    keys = set(re.findall(r'kwargs(?:\.(?:pop|get|setdefault)\(|\[)"(\w+)"', "".join(sources)))
    for family in families.model_types():
        kind = TOKENIZER_MAPPING_NAMES.get(family) or TOKENIZER_MAPPING_NAMES.get(family.replace("-", "_"))
        keys |= inspect.signature(getattr(transformers, kind).__init__).parameters.keys() if kind else set()
    keys -= {"self", "args", "kwargs"}
    classes = READ["tokenizer_config.json"], TOKENIZER_WITHOUT_EFFECT.keys(), MADE_BY_TRANSFORMERS, NOT_YET
    assert not keys - set().union(*classes) and sum(map(len, classes)) == len(set().union(*classes))
    tiny_tokenizer(tmp_path)

    def ids():
        return transformers.AutoTokenizer.from_pretrained(tmp_path)(["The cat sleeps.", "a  dog"])["input_ids"]

    for kind in ("BertTokenizer", "PreTrainedTokenizerFast"):
        cases.edit_json(tmp_path / "tokenizer_config.json", tokenizer_class=kind)
        expected, text = ids(), (tmp_path / "tokenizer_config.json").read_text()
        for key, value in TOKENIZER_WITHOUT_EFFECT.items():
            cases.edit_json(tmp_path / "tokenizer_config.json", **{key: value})
            assert ids() == expected, key
            (tmp_path / "tokenizer_config.json").write_text(text)


def test_config_json_of_model2vec(tmp_path):
    save(word_table(tiny_model(tmp_path / "tokenizer")), tmp_path / "model")
    (tmp_path / "model" / "modules.json").unlink()

    def read():
        model = load_model(str(tmp_path / "model"))
        return model.definition, model.max_length

    check(set(StaticModelConfig.__annotations__), "model2vec", (), [(read, tmp_path / "model" / "config.json")])
