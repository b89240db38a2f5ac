"""Below means below."""

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.paths import HERE
from claude_code_mcp.core.policy.rules import fits
from tests.support.tables import every_row

names = st.text(alphabet="ab.*?[", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))


@every_row(
    ("path", "root", "below"),
    [
        ("/srv/app", "/srv/app", True),
        ("/srv/app/x", "/srv/app", True),
        ("/srv/app/x", "/srv/app/", True),
        ("/srv/app-old", "/srv/app", False),
        ("/srv", "/srv/app", False),
        ("/anything", "/", True),
        ("/SRV/app", "/srv/app", False),
    ],
)
def test_paths_below(path: str, root: str, below: bool) -> None:
    assert (HERE.below(path, root) is not None) is below


@given(st.lists(names, max_size=3), st.lists(names, max_size=3))
def test_everything_in_a_directory_fits_two_stars_and_nothing_next_to_it_does(root: list[str], rest: list[str]) -> None:
    cwd = "/" + "/".join(["home", *root])
    path = "/".join([cwd, *rest])
    assert fits(path, "**", cwd)
    assert not fits(f"{cwd}x", "**", cwd)
