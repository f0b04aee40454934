//! The few colours there are. Whether any is used is decided by the terminal, not here.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Good,
    Busy,
    Bad,
    Hint,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Busy => "33",
            Self::Bad => "1;31",
            Self::Hint => "36",
        }
    }

    pub(crate) fn paint(self, text: &str, colour: bool) -> String {
        if !colour || self == Self::Plain || text.is_empty() {
            return text.to_owned();
        }
        format!("\x1b[{}m{text}\x1b[0m", self.code())
    }
}
