"""Live, replayed and recovered output are the same fold."""

from hypothesis import given
from hypothesis import strategies as st

from dsec.bus.errors import InfraError
from dsec.bus.frames import HEADER, Fold, Frame, Kind, pack_frames, pack_parts, unpack, unpack_frames

OUTPUT = st.lists(st.tuples(st.sampled_from([Kind.STDOUT, Kind.STDERR]), st.binary(min_size=1)), max_size=8)


def cut(pieces: list[tuple[Kind, bytes]], start: int = 0) -> list[Frame]:
    frames, at = [], 0
    for sequence, (kind, data) in enumerate(pieces):
        if at + len(data) > start:
            frames.append(Frame(kind, sequence, at, 7, data))
        at += len(data)
    frames.append(Frame(Kind.EXIT, len(pieces), at, 7, b"{}"))
    return frames


def read(frames: list[Frame]) -> tuple[bytes, bytes, bytes | None]:
    fold, out, err = Fold(), b"", b""
    for frame in frames:
        for kind, data in fold.feed(frame) or ():
            out, err = (out + data, err) if kind is Kind.STDOUT else (out, err + data)
    return out, err, fold.end


@given(OUTPUT)
def test_frames_survive_the_wire(pieces: list[tuple[Kind, bytes]]) -> None:
    frames = cut(pieces)
    packed = pack_frames([frame.pack() for frame in frames])
    assert [unpack(raw) for raw in unpack_frames(packed)] == frames


@given(OUTPUT, st.data())
def test_duplicates_and_another_cut_change_nothing(
    pieces: list[tuple[Kind, bytes]], data: st.DataObject
) -> None:
    whole = read(cut(pieces))
    frames = cut(pieces)
    again = data.draw(st.integers(0, len(frames)))
    assert read(frames[:again] + frames) == whole
    halves = [(kind, half) for kind, raw in pieces for half in (raw[:1], raw[1:]) if half]
    assert read(frames[:again] + cut(halves)) == whole


@given(OUTPUT.filter(lambda pieces: len(pieces) > 1), st.data())
def test_a_gap_is_told_and_takes_nothing(pieces: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    frames = cut(pieces)
    missing = data.draw(st.integers(0, len(pieces) - 2))
    fold = Fold()
    for frame in frames[:missing]:
        assert fold.feed(frame) is not None
    before = fold.expected
    assert fold.feed(frames[missing + 1]) is None
    assert fold.expected == before


@given(st.binary(max_size=64))
def test_what_is_no_frame_is_a_typed_error(raw: bytes) -> None:
    try:
        assert unpack(raw).pack() == raw
    except InfraError:
        assert not raw.startswith(b"\x01") or len(raw) < HEADER.size or raw[1] > max(Kind)


def test_an_inline_frame_holds_everything() -> None:
    frame = Frame(Kind.INLINE, 0, 0, 3, pack_parts(b'{"code":0}', b"out", b"err"))
    fold = Fold()
    assert frame.output == 6
    assert fold.feed(frame) == [(Kind.STDOUT, b"out"), (Kind.STDERR, b"err")]
    assert (fold.end, fold.expected, fold.log) == (b'{"code":0}', 6, 3)
    assert fold.feed(frame) == []
