"""Checks the envelope of signed records against forgery, damage and bombs."""

import hmac
import zlib

import pytest

from sparkstorm.common.errors import StoreInconsistentError, TamperedBlobError
from sparkstorm.control_plane.cluster.envelope import seal, unseal

KEY = b"secret"


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"x" * 99_999, b"y" * 2_000_000],
    ids=["empty", "small", "plain", "deflated"],
)
@pytest.mark.parametrize("key", [KEY, None])
def test_a_record_comes_out_as_it_went_in(body: bytes, key: bytes | None) -> None:
    sealed = seal("/a", body, key)
    assert unseal("/a", sealed, key) == body
    assert len(sealed) < 101_000


def test_every_changed_byte_is_noticed() -> None:
    sealed = seal("/a", b'{"version":1}', KEY)
    for position in range(len(sealed)):
        forged = sealed[:position] + bytes([sealed[position] ^ 1]) + sealed[position + 1 :]
        with pytest.raises((TamperedBlobError, StoreInconsistentError), match="/a"):
            unseal("/a", forged, KEY)


def test_a_record_is_bound_to_its_path_and_key_and_cannot_pass_unsigned() -> None:
    sealed = seal("/a", b"{}", KEY)
    for path, data, key in (
        ("/b", sealed, KEY),
        ("/a", sealed, b"other"),
        ("/a", seal("/a", b"{}", None), KEY),
    ):
        with pytest.raises(TamperedBlobError, match=path):
            unseal(path, data, key)


def test_who_has_no_key_may_read() -> None:
    assert unseal("/a", seal("/a", b"{}", KEY), None) == b"{}"


@pytest.mark.parametrize(
    "packed",
    [b"not zlib", zlib.compress(b"x" * 100)[:-3], zlib.compress(b"\0" * (65 * 1024 * 1024))],
    ids=["garbage", "cut", "bomb"],
)
def test_a_damaged_or_exploding_record_is_refused(packed: bytes) -> None:
    with pytest.raises(StoreInconsistentError, match="/a"):
        unseal("/a", b"sparkstorm-2 zlib unsigned\n" + packed, None)


def test_a_record_of_another_format_is_refused_with_the_versions_and_the_remedy() -> None:
    packed = b'{"version":1}'
    signature = hmac.new(KEY, b"/a\0" + packed, "sha256").hexdigest().encode()
    former = b"sparkstorm-1 json " + signature + b"\n" + packed
    for key in (KEY, None):
        sentence = r"^/a: .*sparkstorm-1.* reads .*sparkstorm-2.*empty"
        with pytest.raises(StoreInconsistentError, match=sentence):
            unseal("/a", former, key)


def test_the_form_of_a_record_is_signed() -> None:
    packed = zlib.compress(b"{}")
    sealed = seal("/a", packed, KEY)
    with pytest.raises(TamperedBlobError, match="/a"):
        unseal("/a", sealed.replace(b" json ", b" zlib ", 1), KEY)
