//! IEEE 754-2019 arithmetic with RISC-V's choices (canonical NaN, tininess after rounding), exact in value and flags
//! for every rounding mode. It computes on integers; where the inexact flag is already set and the rounding is to
//! nearest even, the host's own arithmetic gives the same value and no new flag, and is used instead.

/// Invalid operation.
pub const NV: u8 = 16;
/// Division of a finite number by zero.
pub const DZ: u8 = 8;
/// Overflow.
pub const OF: u8 = 4;
/// Underflow.
pub const UF: u8 = 2;
/// Inexact.
pub const NX: u8 = 1;

/// A binary interchange format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// binary32.
    Single,
    /// binary64.
    Double,
}

/// Rounding modes by their encoding in `frm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To nearest, ties to even.
    NearestEven,
    /// Towards zero.
    Zero,
    /// Down.
    Down,
    /// Up.
    Up,
    /// To nearest, ties away from zero.
    NearestMax,
}

impl Round {
    /// The mode encoded by `bits`; `None` for reserved encodings.
    pub fn from_bits(bits: u8) -> Option<Round> {
        [Round::NearestEven, Round::Zero, Round::Down, Round::Up, Round::NearestMax].get(usize::from(bits)).copied()
    }
}

impl Format {
    /// Bits of the significand without the hidden one.
    const fn fraction(self) -> u32 {
        match self {
            Format::Single => 23,
            Format::Double => 52,
        }
    }

    const fn exponent_max(self) -> i32 {
        match self {
            Format::Single => 255,
            Format::Double => 2047,
        }
    }

    const fn bias(self) -> i32 {
        self.exponent_max() / 2
    }

    const fn infinity(self) -> u64 {
        (self.exponent_max() as u64) << self.fraction()
    }

    const fn nan(self) -> u64 {
        self.infinity() | 1 << (self.fraction() - 1)
    }

    const fn sign(self) -> u64 {
        1 << match self {
            Format::Single => 31,
            Format::Double => 63,
        }
    }

    fn signed(self, sign: bool, magnitude: u64) -> u64 {
        if sign { magnitude | self.sign() } else { magnitude }
    }

    fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    fn is_signaling(self, bits: u64) -> bool {
        self.is_nan(bits) && bits >> (self.fraction() - 1) & 1 == 0
    }

    fn is_finite(self, bits: u64) -> bool {
        bits & !self.sign() < self.infinity()
    }

    /// Finite and not subnormal; zero is not normal.
    fn is_normal(self, bits: u64) -> bool {
        let magnitude = bits & !self.sign();
        magnitude >= 1 << self.fraction() && magnitude < self.infinity()
    }
}

/// Where the top bit of a normalised significand stands.
const TOP: u32 = 126;

/// A finite number other than zero: `significand * 2^(exponent - TOP)`.
#[derive(Clone, Copy)]
struct Number {
    sign: bool,
    exponent: i32,
    significand: u128,
}

enum Unpacked {
    Nan,
    Infinity(bool),
    Zero(bool),
    Finite(Number),
}

fn unpack(format: Format, bits: u64, flags: &mut u8) -> Unpacked {
    let sign = bits & format.sign() != 0;
    let magnitude = bits & !format.sign();
    if magnitude > format.infinity() {
        if format.is_signaling(bits) {
            *flags |= NV;
        }
        return Unpacked::Nan;
    }
    if magnitude == format.infinity() {
        return Unpacked::Infinity(sign);
    }
    if magnitude == 0 {
        return Unpacked::Zero(sign);
    }
    let fraction = format.fraction();
    let biased = (magnitude >> fraction) as i32;
    let low = u128::from(magnitude & ((1 << fraction) - 1));
    let (exponent, significand) =
        if biased == 0 { (1 - format.bias(), low) } else { (biased - format.bias(), low | 1 << fraction) };
    Unpacked::Finite(normalised(sign, exponent, significand << (TOP - fraction)))
}

fn shift_right_jam(value: u128, by: u32) -> u128 {
    if by == 0 {
        value
    } else if by > 127 {
        u128::from(value != 0)
    } else {
        value >> by | u128::from(value << (128 - by) != 0)
    }
}

/// Moves the top bit of a significand other than zero to [`TOP`].
fn normalised(sign: bool, exponent: i32, significand: u128) -> Number {
    let zeros = significand.leading_zeros();
    if zeros == 0 {
        return Number { sign, exponent: exponent + 1, significand: shift_right_jam(significand, 1) };
    }
    let by = zeros - (127 - TOP);
    Number { sign, exponent: exponent - by as i32, significand: significand << by }
}

/// Whether the kept part goes up by one, given the part cut off as a fraction of `2 * half`.
fn rounds_up(round: Round, sign: bool, odd: bool, cut: u128, half: u128) -> bool {
    match round {
        Round::NearestEven => cut > half || (cut == half && odd),
        Round::Zero => false,
        Round::Down => sign && cut != 0,
        Round::Up => !sign && cut != 0,
        Round::NearestMax => cut >= half,
    }
}

fn round_significand(significand: u128, cut_bits: u32, round: Round, sign: bool) -> (u64, bool) {
    let cut = significand & ((1 << cut_bits) - 1);
    let kept = (significand >> cut_bits) as u64;
    let up = rounds_up(round, sign, kept & 1 == 1, cut, 1 << (cut_bits - 1));
    (kept + u64::from(up), cut != 0)
}

fn round_pack(format: Format, number: Number, round: Round, flags: &mut u8) -> u64 {
    let fraction = format.fraction();
    let cut_bits = TOP - fraction;
    let number = normalised(number.sign, number.exponent, number.significand);
    let biased = number.exponent + format.bias();
    if biased <= 0 {
        let (as_normal, _) = round_significand(number.significand, cut_bits, round, number.sign);
        let tiny = biased < 0 || as_normal < 1 << (fraction + 1);
        let shifted = shift_right_jam(number.significand, (1 - biased) as u32);
        let (kept, inexact) = round_significand(shifted, cut_bits, round, number.sign);
        if inexact {
            *flags |= if tiny { UF | NX } else { NX };
        }
        return format.signed(number.sign, kept);
    }
    let (kept, inexact) = round_significand(number.significand, cut_bits, round, number.sign);
    // The hidden one adds itself to the exponent, and so does the carry of a significand that rounded up to two.
    let bits = ((biased as u64 - 1) << fraction).wrapping_add(kept);
    if biased > format.exponent_max() || bits >= format.infinity() {
        *flags |= OF | NX;
        let to_infinity = match round {
            Round::NearestEven | Round::NearestMax => true,
            Round::Zero => false,
            Round::Down => number.sign,
            Round::Up => !number.sign,
        };
        return format.signed(number.sign, format.infinity() - u64::from(!to_infinity));
    }
    if inexact {
        *flags |= NX;
    }
    format.signed(number.sign, bits)
}

fn add_numbers(format: Format, x: Number, y: Number, round: Round, flags: &mut u8) -> u64 {
    let (x, y) = if y.exponent > x.exponent { (y, x) } else { (x, y) };
    let aligned = shift_right_jam(y.significand, (x.exponent - y.exponent) as u32);
    if x.sign == y.sign {
        return round_pack(format, Number { significand: x.significand + aligned, ..x }, round, flags);
    }
    if x.significand == aligned {
        return format.signed(round == Round::Down, 0);
    }
    let sum = if x.significand > aligned {
        Number { significand: x.significand - aligned, ..x }
    } else {
        Number { significand: aligned - x.significand, sign: y.sign, ..x }
    };
    round_pack(format, sum, round, flags)
}

fn host_single(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

/// Whether the host's result can stand in: only the inexact flag could be raised, and it is raised already.
fn host_allowed(round: Round, raised: u8) -> bool {
    raised & NX != 0 && round == Round::NearestEven
}

/// `a + b`. `raised` are flags already set, which may be left out of `flags`.
pub fn add(format: Format, a: u64, b: u64, round: Round, raised: u8, flags: &mut u8) -> u64 {
    if host_allowed(round, raised) && format.is_finite(a) && format.is_finite(b) {
        let sum = match format {
            Format::Single => u64::from((host_single(a) + host_single(b)).to_bits()),
            Format::Double => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        };
        // A subnormal sum is exact, so only overflow needs the slow path.
        if format.is_finite(sum) {
            return sum;
        }
    }
    match (unpack(format, a, flags), unpack(format, b, flags)) {
        (Unpacked::Nan, _) | (_, Unpacked::Nan) => format.nan(),
        (Unpacked::Infinity(x), Unpacked::Infinity(y)) if x != y => {
            *flags |= NV;
            format.nan()
        }
        (Unpacked::Infinity(sign), _) | (_, Unpacked::Infinity(sign)) => format.signed(sign, format.infinity()),
        (Unpacked::Zero(x), Unpacked::Zero(y)) => format.signed(if x == y { x } else { round == Round::Down }, 0),
        (Unpacked::Zero(_), _) => b,
        (_, Unpacked::Zero(_)) => a,
        (Unpacked::Finite(x), Unpacked::Finite(y)) => add_numbers(format, x, y, round, flags),
    }
}

fn product(x: Number, y: Number) -> Number {
    // 53 significant bits each: the product of 106 fits, with its unit at 2^-104.
    let significand = (x.significand >> 74) * (y.significand >> 74);
    normalised(x.sign != y.sign, x.exponent + y.exponent - 104 + TOP as i32, significand)
}

/// `a * b`.
pub fn mul(format: Format, a: u64, b: u64, round: Round, raised: u8, flags: &mut u8) -> u64 {
    if host_allowed(round, raised) && format.is_normal(a) && format.is_normal(b) {
        let result = match format {
            Format::Single => u64::from((host_single(a) * host_single(b)).to_bits()),
            Format::Double => (f64::from_bits(a) * f64::from_bits(b)).to_bits(),
        };
        if surely_normal(format, result) {
            return result;
        }
    }
    let sign = (a ^ b) & format.sign() != 0;
    match (unpack(format, a, flags), unpack(format, b, flags)) {
        (Unpacked::Nan, _) | (_, Unpacked::Nan) => format.nan(),
        (Unpacked::Infinity(_), Unpacked::Zero(_)) | (Unpacked::Zero(_), Unpacked::Infinity(_)) => {
            *flags |= NV;
            format.nan()
        }
        (Unpacked::Infinity(_), _) | (_, Unpacked::Infinity(_)) => format.signed(sign, format.infinity()),
        (Unpacked::Zero(_), _) | (_, Unpacked::Zero(_)) => format.signed(sign, 0),
        (Unpacked::Finite(x), Unpacked::Finite(y)) => round_pack(format, product(x, y), round, flags),
    }
}

/// Normal and above the smallest normal, which a subnormal may have been rounded up to.
fn surely_normal(format: Format, bits: u64) -> bool {
    format.is_normal(bits) && bits & !format.sign() > 1 << format.fraction()
}

/// `a / b`.
pub fn div(format: Format, a: u64, b: u64, round: Round, raised: u8, flags: &mut u8) -> u64 {
    if host_allowed(round, raised) && format.is_normal(a) && format.is_normal(b) {
        let result = match format {
            Format::Single => u64::from((host_single(a) / host_single(b)).to_bits()),
            Format::Double => (f64::from_bits(a) / f64::from_bits(b)).to_bits(),
        };
        if surely_normal(format, result) {
            return result;
        }
    }
    let sign = (a ^ b) & format.sign() != 0;
    match (unpack(format, a, flags), unpack(format, b, flags)) {
        (Unpacked::Nan, _) | (_, Unpacked::Nan) => format.nan(),
        (Unpacked::Infinity(_), Unpacked::Infinity(_)) | (Unpacked::Zero(_), Unpacked::Zero(_)) => {
            *flags |= NV;
            format.nan()
        }
        (Unpacked::Infinity(_), _) => format.signed(sign, format.infinity()),
        (Unpacked::Zero(_), _) | (_, Unpacked::Infinity(_)) => format.signed(sign, 0),
        (_, Unpacked::Zero(_)) => {
            *flags |= DZ;
            format.signed(sign, format.infinity())
        }
        (Unpacked::Finite(x), Unpacked::Finite(y)) => {
            let (dividend, divisor) = (x.significand >> 74 << 73, y.significand >> 74);
            let significand = ((dividend / divisor) << 1) | u128::from(dividend % divisor != 0);
            let quotient = normalised(sign, x.exponent - y.exponent - 74 + TOP as i32, significand);
            round_pack(format, quotient, round, flags)
        }
    }
}

/// The square root of `a`.
pub fn sqrt(format: Format, a: u64, round: Round, raised: u8, flags: &mut u8) -> u64 {
    if host_allowed(round, raised) && format.is_normal(a) && a & format.sign() == 0 {
        return match format {
            Format::Single => u64::from(host_single(a).sqrt().to_bits()),
            Format::Double => f64::from_bits(a).sqrt().to_bits(),
        };
    }
    match unpack(format, a, flags) {
        Unpacked::Nan => format.nan(),
        Unpacked::Zero(_) | Unpacked::Infinity(false) => a,
        Unpacked::Infinity(true) | Unpacked::Finite(Number { sign: true, .. }) => {
            *flags |= NV;
            format.nan()
        }
        Unpacked::Finite(x) => {
            // significand >> 74 has 53 bits with its unit at 2^(exponent - 52); an even exponent can be halved.
            let shift = if (x.exponent - 52) % 2 == 0 { 72 } else { 73 };
            let radicand = (x.significand >> 74) << shift;
            let root = radicand.isqrt();
            let significand = root << 1 | u128::from(root * root != radicand);
            let exponent = (x.exponent - 52 - shift) / 2 - 1 + TOP as i32;
            round_pack(format, normalised(false, exponent, significand), round, flags)
        }
    }
}

/// `a * b + c` with one rounding.
pub fn fma(format: Format, a: u64, b: u64, c: u64, round: Round, raised: u8, flags: &mut u8) -> u64 {
    if host_allowed(round, raised) && format.is_normal(a) && format.is_normal(b) && format.is_finite(c) {
        let result = match format {
            Format::Single => u64::from(host_single(a).mul_add(host_single(b), host_single(c)).to_bits()),
            Format::Double => f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits(),
        };
        if surely_normal(format, result) {
            return result;
        }
    }
    let sign = (a ^ b) & format.sign() != 0;
    let (x, y, z) = (unpack(format, a, flags), unpack(format, b, flags), unpack(format, c, flags));
    if matches!((&x, &y), (Unpacked::Infinity(_), Unpacked::Zero(_)) | (Unpacked::Zero(_), Unpacked::Infinity(_))) {
        // Invalid even when c is a quiet NaN (unprivileged specification, F extension).
        *flags |= NV;
        return format.nan();
    }
    match (x, y, z) {
        (Unpacked::Nan, ..) | (_, Unpacked::Nan, _) | (.., Unpacked::Nan) => format.nan(),
        (Unpacked::Infinity(_), ..) | (_, Unpacked::Infinity(_), _) => {
            if !format.is_finite(c) && (c & format.sign() != 0) != sign {
                *flags |= NV;
                return format.nan();
            }
            format.signed(sign, format.infinity())
        }
        (.., Unpacked::Infinity(_)) => c,
        (Unpacked::Zero(_), _, Unpacked::Zero(z)) | (_, Unpacked::Zero(_), Unpacked::Zero(z)) => {
            format.signed(if sign == z { z } else { round == Round::Down }, 0)
        }
        (Unpacked::Zero(_), ..) | (_, Unpacked::Zero(_), _) => c,
        (Unpacked::Finite(x), Unpacked::Finite(y), Unpacked::Zero(_)) => {
            round_pack(format, product(x, y), round, flags)
        }
        (Unpacked::Finite(x), Unpacked::Finite(y), Unpacked::Finite(z)) => {
            add_numbers(format, product(x, y), z, round, flags)
        }
    }
}

/// `fmin` or `fmax`: minimumNumber and maximumNumber of IEEE 754-2019.
pub fn min_max(format: Format, a: u64, b: u64, max: bool, flags: &mut u8) -> u64 {
    if format.is_signaling(a) || format.is_signaling(b) {
        *flags |= NV;
    }
    match (format.is_nan(a), format.is_nan(b)) {
        (true, true) => format.nan(),
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if (order(format, a) < order(format, b)) != max {
                a
            } else {
                b
            }
        }
    }
}

/// Maps numbers to integers in their order, -0 just below +0.
fn order(format: Format, bits: u64) -> i64 {
    let magnitude = (bits & !format.sign()) as i64;
    if bits & format.sign() != 0 { -magnitude - 1 } else { magnitude }
}

/// `feq`: quiet comparison.
pub fn equal(format: Format, a: u64, b: u64, flags: &mut u8) -> bool {
    if format.is_signaling(a) || format.is_signaling(b) {
        *flags |= NV;
    }
    if format.is_nan(a) || format.is_nan(b) {
        return false;
    }
    a == b || (a | b) & !format.sign() == 0
}

/// `flt`, or `fle` with `or_equal`: signaling comparison.
pub fn less(format: Format, a: u64, b: u64, or_equal: bool, flags: &mut u8) -> bool {
    if format.is_nan(a) || format.is_nan(b) {
        *flags |= NV;
        return false;
    }
    let both_zero = (a | b) & !format.sign() == 0;
    if both_zero || a == b {
        return or_equal;
    }
    order(format, a) < order(format, b)
}

/// `fclass`: one bit set of ten.
pub fn classify(format: Format, a: u64) -> u64 {
    let negative = a & format.sign() != 0;
    let magnitude = a & !format.sign();
    let (below, above) = if format.is_nan(a) {
        return 1 << if format.is_signaling(a) { 8 } else { 9 };
    } else if magnitude == format.infinity() {
        (0, 7)
    } else if format.is_normal(a) {
        (1, 6)
    } else if magnitude != 0 {
        (2, 5)
    } else {
        (3, 4)
    };
    1 << if negative { below } else { above }
}

/// Converts between the formats.
pub fn convert(from: Format, to: Format, a: u64, round: Round, flags: &mut u8) -> u64 {
    match unpack(from, a, flags) {
        Unpacked::Nan => to.nan(),
        Unpacked::Infinity(sign) => to.signed(sign, to.infinity()),
        Unpacked::Zero(sign) => to.signed(sign, 0),
        Unpacked::Finite(number) => round_pack(to, number, round, flags),
    }
}

/// Converts an integer.
pub fn from_integer(format: Format, value: i128, round: Round, flags: &mut u8) -> u64 {
    if value == 0 {
        return 0;
    }
    let number = Number { sign: value < 0, exponent: TOP as i32, significand: value.unsigned_abs() };
    round_pack(format, number, round, flags)
}

/// Converts to an integer of `width` bits (32 or 64), sign-extended from 64 bits; saturates with NV.
pub fn to_integer(format: Format, a: u64, signed: bool, width: u32, round: Round, flags: &mut u8) -> u64 {
    let (lowest, highest) =
        if signed { (-(1i128 << (width - 1)), (1 << (width - 1)) - 1) } else { (0, (1i128 << width) - 1) };
    let mut scratch = 0;
    let value = match unpack(format, a, &mut scratch) {
        Unpacked::Zero(_) => return 0,
        Unpacked::Nan => i128::MAX,
        Unpacked::Infinity(sign) => {
            if sign {
                i128::MIN
            } else {
                i128::MAX
            }
        }
        Unpacked::Finite(number) if number.exponent > 70 => {
            if number.sign {
                i128::MIN
            } else {
                i128::MAX
            }
        }
        Unpacked::Finite(number) => {
            let by = (TOP as i32 - number.exponent).min(127) as u32;
            let exact = number.exponent >= -1;
            let (kept, cut) =
                if exact { (number.significand >> by, number.significand & ((1 << by) - 1)) } else { (0, 1) };
            let up = rounds_up(round, number.sign, kept & 1 == 1, cut, 1 << (by - 1));
            let magnitude = kept as i128 + i128::from(up);
            if cut != 0 {
                scratch = NX;
            }
            if number.sign { -magnitude } else { magnitude }
        }
    };
    if value < lowest || value > highest {
        *flags |= NV;
        return value.clamp(lowest, highest) as u64;
    }
    *flags |= scratch;
    value as u64
}
