//! Whether a matcher matches, within the bounds on work.

/// Whether a matcher matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchResult {
    Yes,
    No,
    /// Unknown, because this is too long to evaluate within the bounds on work.
    Unknown(TooLong),
}

/// What exceeds the length that a rule may evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLong {
    /// Path or query.
    Target,
    Header,
}

impl From<bool> for MatchResult {
    fn from(matches: bool) -> Self {
        if matches { Self::Yes } else { Self::No }
    }
}

impl MatchResult {
    /// `decisive` if any of the results is; otherwise an unknown one, if there is any; otherwise the opposite.
    pub fn unless(decisive: Self, all: impl Iterator<Item = Self>) -> Self {
        let mut result = decisive.not();
        for one in all {
            if one == decisive {
                return decisive;
            }
            if matches!(one, Self::Unknown(_)) {
                result = one;
            }
        }
        result
    }

    pub fn not(self) -> Self {
        match self {
            Self::Yes => Self::No,
            Self::No => Self::Yes,
            unknown @ Self::Unknown(_) => unknown,
        }
    }
}
