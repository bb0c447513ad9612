"""E2: packed rows with one fault."""

import json

import numpy as np
from poison_parts import Poison
from quality_parts import write_packed

from longstride.data.packing_summary import SUMMARY, PackingSummary
from longstride.store.artifacts import publish
from longstride.store.files import read_json, write_json


def pad_end(tensors, records, manifest):
    tensors["segments_NT"][0, -1] = -1
    tensors["loss_mask_NT"][0, -1] = 0
    records[0]["padding_tokens"] = 1


def swap_segments(tensors, records, manifest):
    tensors["segments_NT"][0] += 1


def shift_positions(tensors, records, manifest):
    tensors["positions_NT"][0] += 1


def train_first(tensors, records, manifest):
    tensors["loss_mask_NT"][0, 0] = 1


def weigh(tensors, records, manifest):
    tensors["loss_mask_NT"][0, 5] = 2


def foreign_token(tensors, records, manifest):
    tensors["tokens_NT"][0, 3] = 4_000


def repeat_rows(tensors, records, manifest):
    for name in ("tokens_NT", "segments_NT", "positions_NT", "loss_mask_NT"):
        tensors[name][1:4] = tensors[name][0]
    for number in range(1, 4):
        records[number] = records[0] | {"id": records[number]["id"]}


def untrained(tensors, records, manifest):
    tensors["loss_mask_NT"][0] = 0
    records[0]["target_tokens"] = 0


def other_tokenizer(tensors, records, manifest):
    manifest["parents"]["tokenizer"] = "sha256:other"


def endless(tensors, records, manifest):
    tensors["tokens_NT"][tensors["tokens_NT"] == 1] = 20


def narrow(tensors, records, manifest):
    """Every token counts towards the domain that has the smallest share."""
    for record in records:
        record["domain_tokens"] = {"reasoning": sum(record["domain_tokens"].values())}


def lie(tensors, records, manifest):
    records[0]["longest_document_tokens"] = 1


def few(tensors, records, manifest):
    del records[3:]
    return {name: array[:3] for name, array in tensors.items()}


def chop(tensors, records, manifest):
    """Every token of a long segment becomes a document of its own."""
    shape = tensors["segments_NT"].shape
    tensors["segments_NT"][:] = np.arange(shape[1]) // 4
    tensors["positions_NT"][:] = np.arange(shape[1]) % 4
    tensors["loss_mask_NT"][:] = np.arange(shape[1]) % 4 != 0
    for record in records:
        record["documents"] = ["d"] * (shape[1] // 4)
        record["longest_document_tokens"] = 4
        record["target_tokens"] = shape[1] * 3 // 4


def pad_and_train(tensors, records, manifest):
    """Padding that is trained; the record says what the tensors hold."""
    pad_end(tensors, records, manifest)
    tensors["loss_mask_NT"][0, -1] = 1
    records[0]["longest_document_tokens"] = int(np.bincount(tensors["segments_NT"][0, :-1]).max())
    records[0]["target_tokens"] = int(tensors["loss_mask_NT"][0].sum())
    domain = next(iter(records[0]["domain_tokens"]))
    records[0]["domain_tokens"][domain] -= 1


def pad(tensors, records, manifest):
    pad_and_train(tensors, records, manifest)
    tensors["loss_mask_NT"][0, -1] = 0
    records[0]["target_tokens"] -= 1


def train_first_and_say_so(tensors, records, manifest):
    train_first(tensors, records, manifest)
    records[0]["target_tokens"] += 1


def gap(tensors, records, manifest):
    """The last document of a row is numbered as if one before it were missing."""
    row = next(r for r in range(len(records)) if tensors["segments_NT"][r].max() > 0)
    last = tensors["segments_NT"][row].max()
    tensors["segments_NT"][row][tensors["segments_NT"][row] == last] += 1


def few_but_ended(tensors, records, manifest):
    chosen = few(tensors, records, manifest)
    chosen["tokens_NT"][0, -1] = 1
    return chosen


def cut(tensors, records, manifest):
    for record in records:
        record["truncated_documents"] = 2 * len(record["documents"])


def unsplit(tensors, records, manifest):
    for record in records:
        record["truncated_documents"] = 1


def all_long(tensors, records, manifest):
    """Every row is one document."""
    shape = tensors["segments_NT"].shape
    tensors["segments_NT"][:] = 0
    tensors["positions_NT"][:] = np.arange(shape[1])
    tensors["loss_mask_NT"][:] = np.arange(shape[1]) > 0
    for record in records:
        record["documents"] = record["documents"][:1]
        record["truncated_documents"] = 1
        record["longest_document_tokens"] = shape[1]
        record["target_tokens"] = shape[1] - 1


def summarised(change):
    """Rows whose packer says something else of them."""

    def write(parts, out):
        path = write_packed(out, parts["extend-1"], lambda *_: None)
        summary = read_json(parts["extend-1"] / SUMMARY, PackingSummary)
        change(summary)
        write_json(path / SUMMARY, summary)
        manifest = json.loads((path / "manifest.json").read_text())
        publish(path, "packed", manifest["stage"], parents=manifest["parents"],
                counts=manifest["counts"])  # fmt: skip
        return path

    return write


def only_books_are_long(summary):
    for domain, lengths in summary.lengths.items():
        lengths.packed = {"1": 1.0} if domain == "book" else {"<1/8": 1.0}


def one_cell_is_thin(summary):
    summary.probes = {"0.5/0": 30, "0.5/1": 3}


def packed(change, *also):
    return Poison(lambda parts, out: write_packed(out, parts["extend-1"], change), frozenset(also))


def other_window(parts, out):
    return parts["pretrain"]


def nothing_split(recipe):
    recipe.quality.thresholds["E2/split_rows"] = 0.0


POISONS = {
    "window": Poison(other_window, frozenset({"short_share"})),
    "no_padding": packed(pad),
    "segments_ordered": packed(gap, "records_agree"),
    "positions_restart": packed(shift_positions),
    "targets_on_padding": packed(pad_and_train, "no_padding"),
    "targets_without_context": packed(train_first_and_say_so),
    "mask_binary": packed(weigh, "records_agree"),
    "rows_have_targets": packed(untrained),
    "tokens_in_vocabulary": packed(foreign_token),
    "records_agree": packed(lie),
    "duplicate_rows": packed(repeat_rows),
    "tokenizer_matches": packed(other_tokenizer),
    "documents_end": packed(endless),
    "long_share": packed(chop),
    "mixture_kl": packed(narrow),
    "tokens_planned": packed(few_but_ended),
    "split_rows": Poison(packed(unsplit).subject, recipe=nothing_split),
    "truncated_documents": packed(cut),
    "short_share": packed(all_long),
    "long_text_domains": Poison(summarised(only_books_are_long)),
    "needle_coverage": Poison(summarised(one_cell_is_thin)),
}
