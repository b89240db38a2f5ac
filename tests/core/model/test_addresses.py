"""Which addresses are of the open internet: data for push and for the proxy of sandboxes."""

from ipaddress import ip_address

import pytest

from claude_code_mcp.core.model.network import is_public, read_address

NOT_PUBLIC = {
    "loopback": ["127.0.0.1", "127.255.255.255", "::1"],
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12:3456::1"],
    "link": ["169.254.0.1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "febf::1"],
    "site": ["fec0::1", "fec0:0:0:ffff::1", "feff::1"],
    "shared": ["100.64.0.1", "100.100.100.200", "100.127.255.255"],
    "of a cloud": ["168.63.129.16", "192.0.0.192", "fd00:ec2::254"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarks": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "4000::1", "8000::1", "5f00::1", "100::1"],
    "IPv4 inside, mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0"],
    "IPv4 inside, compatible": ["::127.0.0.1", "::10.0.0.1", "::93.184.216.34", "::2"],
    "IPv4 inside, translated": ["64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1"],
    "IPv4 inside, 6to4": ["2002:7f00:1::", "2002:c0a8:101::1", "2002:5db8:d822::1", "192.88.99.1"],
    "IPv4 inside, Teredo": ["2001::1", "2001:0:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "IPv4 inside, ISATAP": ["2606:4700::5efe:7f00:1", "2606:4700::200:5efe:a00:1", "fe80::5efe:a00:1"],
    "protocols": ["2001:10::1", "2001:20::1", "192.0.0.8"],
}
PUBLIC = ["93.184.216.34", "1.1.1.1", "172.32.0.1", "100.128.0.1", "168.63.129.17", "2606:4700::1111", "2a00:1450::1"]
PUBLIC += ["::ffff:93.184.216.34", "64:ff9b::5db8:d822", "2001:200::1", "2001:4860:4860::8888"]


@pytest.mark.parametrize("address", [address for addresses in NOT_PUBLIC.values() for address in addresses])
def test_these_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_these_addresses_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(("text", "read"), [("[::1]", "::1"), ("fe80::1%eth0", "fe80::1"), ("127.0.0.1", "127.0.0.1")])
def test_an_address_is_read_in_its_usual_forms(text: str, read: str) -> None:
    assert str(read_address(text)) == read


@pytest.mark.parametrize("text", ["", "localhost", "127.1", "0x7f000001", "2130706433", "127.0.0.1:80", "[::1]:80"])
def test_unusual_spelling_is_not_an_address(text: str) -> None:
    assert read_address(text) is None
