"""Text pieces: whole characters only, and nothing of a stop text."""

from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache_worker.engine.assembler import Assembler


def assemble(
    pieces: list[bytes], stop: tuple[str, ...] = (), *, include_stop: bool = False, num_unstoppable: int = 0
) -> tuple[list[str], str | None]:
    """(what is sent after each token and at the end, the stop text that was met)."""
    assembler = Assembler(pieces.__getitem__, stop, include_stop=include_stop)
    sent = []
    for token in range(len(pieces)):
        text, met_stop = assembler.push(token, may_stop=token >= num_unstoppable)
        sent.append(text)
        if met_stop is not None:
            return sent, met_stop
    text, met_stop = assembler.finish()
    return [*sent, text], met_stop


def test_b103_a_stop_text_over_several_tokens_is_never_begun():
    assert assemble([b"DEF", b"G", b"HI", b"J"], ("DEFGHIJ",)) == (["", "", "", ""], "DEFGHIJ")


def test_b103_what_only_looked_like_a_stop_text_is_sent():
    assert assemble([b"DEF", b"G", b"X"], ("DEFGHIJ",)) == (["", "", "DEFGX", ""], None)
    assert assemble([b"DEF", b"G"], ("DEFGHIJ",)) == (["", "", "DEFG"], None)


def test_b103_nothing_after_a_stop_text_inside_a_token():
    assert assemble([b"alpha", b" gamma delta"], ("gamma",)) == (["alpha", " "], "gamma")


def test_the_earliest_of_several_stop_texts_counts():
    assert assemble([b"one two three"], ("three", "two")) == (["one "], "two")


def test_of_stop_texts_that_begin_together_the_first_listed_counts():
    assert assemble([b"all alike"], ("alike", "al"), include_stop=True) == (["al"], "al")
    assert assemble([b"alike"], ("alike", "al"), include_stop=True) == (["alike"], "alike")


def test_a_stop_text_that_comes_too_early_is_text():
    stop = ("END",)
    assert assemble([b"aEND", b"b", b"cENDd"], stop, num_unstoppable=2) == (["aEND", "b", "c"], "END")
    assert assemble([b"aEN", b"Db", b"c"], stop, num_unstoppable=2) == (["a", "ENDb", "c", ""], None)
    assert assemble([b"aEN", b"Db"], stop, num_unstoppable=1) == (["a", ""], "END")
    # The text held back for the longer one has the shorter one in it, which came too early.
    assert assemble([b"xab", b"z"], ("xaby", "ab"), num_unstoppable=1) == (["", "xabz", ""], None)


def test_b105_a_character_over_two_tokens_comes_out_whole():
    assert assemble([b"\xf0\x9f", b"\x94\xa5"]) == (["", "\N{FIRE}", ""], None)


def test_b105_a_space_does_not_flush_half_a_character():
    sent, _ = assemble([b"\xf0\x9f", b" x"])
    assert sent[0] == ""
    assert "".join(sent) == b"\xf0\x9f x".decode(errors="replace")


def test_an_answer_cut_inside_a_character_ends_with_a_replacement():
    assert assemble([b"a\xe2\x82"]) == (["a", "\ufffd"], None)


TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=30)


@st.composite
def cut_bytes(draw):
    data = draw(st.one_of(TEXTS.map(str.encode), st.binary(max_size=40)))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=20)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@settings(max_examples=500)
@given(cut_bytes())
def test_b105_pieces_joined_are_the_decode_of_all_bytes(pieces):
    sent, _ = assemble(pieces)
    assert "".join(sent) == b"".join(pieces).decode(errors="replace")


@given(
    st.text("abc", max_size=30).map(str.encode),
    st.lists(st.integers(0, 30), max_size=8),
    st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_b103_any_cut_of_any_text_ends_before_the_first_stop_text(data, cuts, stop):
    cuts = sorted(min(cut, len(data)) for cut in cuts)
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    sent, met = assemble(pieces, tuple(stop))
    text = "".join(sent)
    assert data.decode().startswith(text)
    assert not any(s in text for s in stop)
    assert (met is not None) == any(s in data.decode() for s in stop)
    assert data.decode().startswith(text + (met or ""))
    if met is None:
        assert text == data.decode()
    with_stop, also_met = assemble(pieces, tuple(stop), include_stop=True)
    assert ("".join(with_stop), also_met) == (text + (met or ""), met)
