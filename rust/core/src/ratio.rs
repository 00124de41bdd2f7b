//! Exact ratios: the fraction that a user meant when typing a decimal.
//! What a ratio applies to is in `pool.rs` (growth) and `runtime.rs` (`swa_full_tokens_ratio`).

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A positive fraction in lowest terms.
///
/// `"0.8".parse::<Ratio>()` is 4/5, so `floor(375360 · 0.8)` is 300288 and never one token less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: NonZeroU64,
    denominator: NonZeroU64,
}

impl Ratio {
    /// One to one.
    pub const ONE: Self = Self { numerator: NonZeroU64::MIN, denominator: NonZeroU64::MIN };

    /// `numerator / denominator`, reduced.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when either is zero.
    pub fn new(numerator: u64, denominator: u64) -> Result<Self> {
        let (Some(numerator), Some(denominator)) = (NonZeroU64::new(numerator), NonZeroU64::new(denominator)) else {
            return Err(Error::invalid("ratio", &format!("{numerator}/{denominator}"), "pass a ratio above 0"));
        };
        let divisor = greatest_common_divisor(numerator, denominator);
        Ok(Self { numerator: divided(numerator, divisor), denominator: divided(denominator, divisor) })
    }

    /// The upper number of the fraction.
    #[must_use]
    pub fn numerator(self) -> u64 {
        self.numerator.get()
    }

    /// The lower number of the fraction.
    #[must_use]
    pub fn denominator(self) -> NonZeroU64 {
        self.denominator
    }

    /// `floor(tokens · ratio)`; saturates above 2^64.
    #[must_use]
    pub fn floor_of(self, tokens: u64) -> u64 {
        if self == Self::ONE {
            return tokens;
        }
        let product = u128::from(tokens).saturating_mul(self.numerator.get().into());
        u64::try_from(product / std::num::NonZeroU128::from(self.denominator)).unwrap_or(u64::MAX)
    }

    /// The least number of tokens for which `floor_of` gives at least `slots`; saturates above 2^64.
    #[must_use]
    pub fn tokens_for(self, slots: u64) -> u64 {
        let product = u128::from(slots).saturating_mul(self.denominator.get().into());
        u64::try_from(product.div_ceil(self.numerator.get().into())).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

impl FromStr for Ratio {
    type Err = Error;

    /// Reads `4/5`, `0.8`, `.8`, `1`, `8e-1`.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            Error::invalid(
                "ratio",
                &text,
                "pass a decimal such as 0.8 or a fraction such as 4/5, above 0 and with terms that fit 64 bits",
            )
        };
        let parsed = match text.split_once('/') {
            Some((numerator, denominator)) => parse_digits(numerator.trim()).zip(parse_digits(denominator.trim())),
            None => parse_decimal(text.trim()),
        };
        parsed.and_then(|(numerator, denominator)| Self::new(numerator, denominator).ok()).ok_or_else(invalid)
    }
}

/// `1.25e-3` as 125 and 10^5. `None` for what is no decimal, or does not fit 64 bits.
fn parse_decimal(text: &str) -> Option<(u64, u64)> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let part = part.trim_end_matches('0');
    let digits = parse_digits(&format!("{whole}{part}"))?;
    let places = i32::try_from(part.len()).ok()?.checked_sub(exponent)?;
    let power = 10_u64.checked_pow(places.unsigned_abs())?;
    if places >= 0 { Some((digits, power)) } else { Some((digits.checked_mul(power)?, 1)) }
}

/// Digits only: no sign, no space, no underscore.
fn parse_digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn greatest_common_divisor(mut a: NonZeroU64, mut b: NonZeroU64) -> NonZeroU64 {
    while let Some(rest) = NonZeroU64::new(a.get() % b) {
        (a, b) = (b, rest);
    }
    b
}

fn divided(number: NonZeroU64, divisor: NonZeroU64) -> NonZeroU64 {
    // A divisor of a positive number leaves a positive number.
    NonZeroU64::new(number.get() / divisor).unwrap_or(NonZeroU64::MIN)
}
