"""How the main screen is laid out, which follows from the size of the terminal and from whether the list is wanted."""

from textual.geometry import Size
from textual.screen import Screen

from .input_box import MessageArea
from .session_list import SessionSidebar

NARROW, WIDE, SHORT = 60, 100, 16
LEAST = Size(20, 6)
"""The smallest terminal in which everything can be done."""


def size_classes(size: Size) -> dict[str, bool]:
    """The classes of the style sheet that hold at a size."""
    return {
        "-narrow": size.width < NARROW,
        "-wide": size.width >= WIDE,
        "-short": size.height < SHORT,
        "-tiny": size.width < LEAST.width or size.height < LEAST.height,
    }


class ScreenLayout:
    """The list of sessions beside the conversation or, in a narrow terminal, in its place while it is wanted."""

    def __init__(self, screen: Screen[None]) -> None:
        self._screen = screen
        self._size = LEAST
        self._is_hidden = False
        """Where there is room for the list beside the conversation."""
        self._is_wanted = False
        """Where the list takes the place of the conversation."""

    def fit(self, size: Size) -> None:
        """Lays the parts out for a terminal of this size. Whatever has the focus keeps it if it is still there."""
        self._size = size
        screen = self._screen
        screen.update_classes(size_classes(size), animate=False)
        if not screen.query(MessageArea):
            return  # the first size is known before the parts are there
        sidebar, middle = screen.query_one(SessionSidebar), screen.query_one("#middle")
        sidebar.display = self.is_list_shown
        middle.display = not (self._is_narrow and self._is_wanted)
        if not middle.display and not sidebar.has_focus_within:
            sidebar.focus_filter()
        elif not sidebar.display and sidebar.has_focus_within:
            screen.query_one(MessageArea).focus()
        elif screen.focused is None and screen.app.app_focus:
            screen.query_one(MessageArea).focus()  # everything was hidden for a moment: a terminal too small for it

    @property
    def _is_narrow(self) -> bool:
        return self._size.width < NARROW

    @property
    def is_list_shown(self) -> bool:
        return self._is_wanted if self._is_narrow else not self._is_hidden

    def show_list(self, shown: bool) -> None:
        """Shows or hides the list."""
        if self._is_narrow:
            self._is_wanted = shown
        else:
            self._is_hidden = not shown
        self.fit(self._size)

    def leave_list(self) -> None:
        """The conversation is wanted again where the list has taken its place."""
        self._is_wanted = False
        self.fit(self._size)
