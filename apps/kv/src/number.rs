//! Numbers as the protocol writes them: strict integers, decimal fractions added without rounding where that is
//! possible, and the texts both are printed as.

/// Parses a signed 64-bit integer the way Redis does: an optional `-`, no `+`, no blanks, no leading zeros, no `-0`.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        all => (false, all),
    };
    match digits {
        [b'0'] => return if negative { None } else { Some(0) },
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value: u64 = 0;
    for &d in digits {
        if !d.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(d - b'0'))?;
    }
    match (negative, value) {
        (false, v) => i64::try_from(v).ok(),
        (true, v) if v == 1 << 63 => Some(i64::MIN),
        (true, v) => i64::try_from(v).ok().map(|v| -v),
    }
}

/// Room for the decimal text of any 64-bit integer.
pub struct IntText {
    bytes: [u8; 20],
    start: usize,
}

impl IntText {
    /// The decimal text of `value`.
    pub fn new(value: i64) -> IntText {
        let mut text = IntText { bytes: [0; 20], start: 20 };
        let mut rest = value.unsigned_abs();
        loop {
            text.start -= 1;
            text.bytes[text.start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        if value < 0 {
            text.start -= 1;
            text.bytes[text.start] = b'-';
        }
        text
    }

    /// The text.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// How many bytes the decimal text of `value` has.
pub fn text_len(value: i64) -> usize {
    IntText::new(value).as_bytes().len()
}

/// Parses a finite or infinite floating-point number; blanks and `nan` are refused.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    if text.is_empty() || text.starts_with(|c: char| c.is_whitespace()) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    if value.is_nan() { None } else { Some(value) }
}

/// A decimal fraction `mantissa / 10^scale`, exact.
#[derive(Clone, Copy)]
struct Decimal {
    mantissa: i128,
    scale: u32,
}

/// More digits than this after the point leave exact arithmetic.
const SCALE_MAX: u32 = 17;

impl Decimal {
    fn parse(text: &[u8]) -> Option<Decimal> {
        let (negative, digits) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            all => (false, all),
        };
        if digits.is_empty() || digits.len() > 30 {
            return None;
        }
        let (mut mantissa, mut scale, mut point, mut seen) = (0i128, 0u32, false, false);
        for &d in digits {
            match d {
                b'.' if !point => point = true,
                b'0'..=b'9' => {
                    mantissa = mantissa * 10 + i128::from(d - b'0');
                    scale += u32::from(point);
                    seen = true;
                }
                _ => return None,
            }
        }
        (seen && scale <= SCALE_MAX).then_some(Decimal { mantissa: if negative { -mantissa } else { mantissa }, scale })
    }

    fn add(self, other: Decimal) -> Option<Decimal> {
        let scale = self.scale.max(other.scale);
        let a = self.mantissa.checked_mul(10i128.pow(scale - self.scale))?;
        let b = other.mantissa.checked_mul(10i128.pow(scale - other.scale))?;
        Some(Decimal { mantissa: a.checked_add(b)?, scale })
    }

    fn text(self) -> String {
        let sign = if self.mantissa < 0 { "-" } else { "" };
        let digits = format!("{:0width$}", self.mantissa.unsigned_abs(), width = self.scale as usize + 1);
        let (whole, fraction) = digits.split_at(digits.len() - self.scale as usize);
        let fraction = fraction.trim_end_matches('0');
        if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
    }
}

/// Why two numbers could not be added.
#[derive(Debug, PartialEq, Eq)]
pub enum FloatError {
    /// One of the texts is no number.
    NotANumber,
    /// The sum is not finite.
    NotFinite,
}

/// The sum of two decimal texts as text: exact where both are plain decimals, in double precision otherwise.
pub fn add_decimals(a: &[u8], b: &[u8]) -> Result<String, FloatError> {
    let (x, y) = (parse_f64(a).ok_or(FloatError::NotANumber)?, parse_f64(b).ok_or(FloatError::NotANumber)?);
    if let (Some(x), Some(y)) = (Decimal::parse(a), Decimal::parse(b))
        && let Some(sum) = x.add(y)
    {
        return Ok(sum.text());
    }
    let sum = x + y;
    if sum.is_finite() { Ok(format!("{sum}")) } else { Err(FloatError::NotFinite) }
}

/// Parses an amount of memory: bytes, or with a unit `k`, `kb`, `m`, `mb`, `g`, `gb` (`k` is 1000, `kb` 1024).
pub fn parse_memory(text: &str) -> Option<u64> {
    let lower = text.trim().to_ascii_lowercase();
    let split = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (digits, unit) = lower.split_at(split);
    let factor: u64 = match unit {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1024,
        "m" => 1_000_000,
        "mb" => 1024 * 1024,
        "g" => 1_000_000_000,
        "gb" => 1024 * 1024 * 1024,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn integer_with_plus_blank_or_leading_zero_is_refused() {
        for bad in ["", "-", "+1", " 1", "1 ", "01", "-0", "-01", "9223372036854775808", "1a", "18446744073709551616"] {
            assert_eq!(parse_i64(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
    }

    proptest! {
        #[test]
        fn integer_printed_and_parsed_is_the_same(value: i64) {
            let text = IntText::new(value);
            prop_assert_eq!(text.as_bytes().to_vec(), value.to_string().into_bytes());
            prop_assert_eq!(parse_i64(text.as_bytes()), Some(value));
        }
    }

    #[test]
    fn decimals_added_keep_every_digit() {
        assert_eq!(add_decimals(b"0.1", b"0.2").as_deref(), Ok("0.3"));
        assert_eq!(add_decimals(b"10.50", b"0.1").as_deref(), Ok("10.6"));
        assert_eq!(add_decimals(b"-1.5", b"1.5").as_deref(), Ok("0"));
        assert_eq!(add_decimals(b"5.0e3", b"2.0e2").as_deref(), Ok("5200"));
        assert_eq!(add_decimals(b"x", b"1"), Err(FloatError::NotANumber));
        assert_eq!(add_decimals(b"1e308", b"1.7e308"), Err(FloatError::NotFinite));
    }

    #[test]
    fn memory_units_follow_redis() {
        assert_eq!(parse_memory("100mb"), Some(100 << 20));
        assert_eq!(parse_memory("1k"), Some(1000));
        assert_eq!(parse_memory("0"), Some(0));
        assert_eq!(parse_memory("ten"), None);
    }
}
