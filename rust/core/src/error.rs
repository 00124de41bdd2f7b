//! What can be wrong, as data; the sentence is made when it is shown.
//! The Python classes of the same names are in `python/poolplan/errors.py`.

use std::fmt::Write as _;

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option has a value that it may not have.
    #[error("{option}={value} is not valid: {allowed}")]
    InvalidOption {
        /// Name of the option, as the user wrote it.
        option: &'static str,
        /// The value found.
        value: String,
        /// What would be valid, with the user's own numbers.
        allowed: String,
    },
    /// The budget does not hold the least plan with which the runtime can serve one request.
    #[error("{}", shortage(*available_bytes, *required_bytes, reason, alternatives))]
    InsufficientMemory {
        /// The budget, bytes. Negative when a runtime measured less than nothing.
        available_bytes: i128,
        /// The least budget that works with all other options as they are, bytes.
        required_bytes: u128,
        /// What that least plan must hold.
        reason: String,
        /// For each other option that could help alone: the value nearest to its own with which this budget works.
        alternatives: Vec<(&'static str, String)>,
    },
    /// The model keeps nothing that a pool could hold, or something that no pool here can.
    #[error("{message}")]
    UnsupportedModel {
        /// What the model keeps and why it cannot be planned.
        message: String,
    },
}

impl Error {
    pub(crate) fn invalid(option: &'static str, value: &dyn std::fmt::Display, allowed: impl Into<String>) -> Self {
        Self::InvalidOption { option, value: value.to_string(), allowed: allowed.into() }
    }

    /// Bytes that are missing, where memory is what is missing.
    #[must_use]
    pub fn missing_bytes(&self) -> Option<u128> {
        match self {
            Self::InsufficientMemory { available_bytes, required_bytes, .. } => {
                let required = i128::try_from(*required_bytes).unwrap_or(i128::MAX);
                Some(required.saturating_sub(*available_bytes).unsigned_abs())
            }
            _ => None,
        }
    }
}

fn shortage(available: i128, required: u128, reason: &str, alternatives: &[(&'static str, String)]) -> String {
    let missing = i128::try_from(required).unwrap_or(i128::MAX).saturating_sub(available);
    let mut text = format!(
        "available_bytes={available} is {missing} bytes short of the {required} bytes that the least plan takes: {reason}"
    );
    for (option, value) in alternatives {
        // Writing to a String cannot fail.
        let _ = write!(text, "; or pass {option}={value}");
    }
    text
}
