"""What counting tokens again leaves to doubt: causes and cures, as sentences."""

from collections.abc import Iterator

from loadgen.records.run_record import Recount


def recount_doubts(recount: Recount) -> Iterator[str]:
    """Give every reason to doubt a count of tokens; none where nothing was kept and complete."""
    if recount.problem:
        by_ids = recount.replies or recount.without_usage
        which = "replies without token ids were not" if by_ids else "no reply's tokens were"
        yield f"{which} counted again: {recount.problem}"
    if recount.apart_by_ids:
        yield (
            f"of {recount.by_ids} replies that came with their token ids {recount.apart_by_ids} "
            "have another number of them than the server's usage says: the server miscounts, or "
            "a part of it does; compare with its own metrics before tokens/s are believed. The "
            "usage is reported"
        )
    retokenised = recount.apart - recount.apart_by_ids
    if retokenised:
        yield (
            f"of {recount.replies - recount.by_ids} replies whose text was tokenised again "
            f"{retokenised} have another count than the server's usage (all that were counted "
            f"again: {recount.counted_tokens:,} tokens against {recount.usage_tokens:,}): text "
            "need not lead back to the same tokens, and special ones and an end of sequence are "
            "not in it; token ids beside the reply, or --tokenizer with the model's own, tell "
            "that from a server that miscounts. The usage is reported"
        )
    if recount.without_usage:
        yield (
            f"{recount.without_usage} replies without usage were counted by us: "
            f"{recount.without_usage_tokens:,} tokens, where their "
            f"{recount.without_usage_chunks:,} chunks are reported as so many: figures by the "
            "token are off by that ratio; a server that sends usage with its streams cures it"
        )
