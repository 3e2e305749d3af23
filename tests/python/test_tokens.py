import ashlar
import pytest


def test_a_name_reads_what_it_writes():
    text = "0:00000000000000ff"
    assert str(ashlar.SequenceHash.parse(text)) == text


def test_a_bad_name_says_why():
    with pytest.raises(ashlar.InvalidArgument) as caught:
        ashlar.SequenceHash.parse("nothing")
    assert caught.value.code == "invalid_argument"
    assert isinstance(caught.value, ValueError)
