use crate::float::{Format, NX, Round, add, div, fma, mul, sqrt};
use crate::{Class, Op, Operands, Reg, decode, execute};

#[test]
fn decode_of_common_encodings_names_operation_and_operands() {
    // add a0, a1, a2
    let uop = decode(0x00c5_8533);
    assert_eq!((uop.op, uop.dest()), (Op::Add, Some(Reg::X(10))));
    assert_eq!(uop.sources(), [Some(Reg::X(11)), Some(Reg::X(12)), None]);
    // c.ld a0, 8(a1)
    let uop = decode(0x6588);
    assert_eq!((uop.op, uop.len, uop.rd, uop.rs1, uop.imm), (Op::Ld, 2, 10, 11, 8));
    // beq x0, x0, -4
    let uop = decode(0xfe00_0ee3);
    assert_eq!((uop.op, uop.imm), (Op::Beq, -4));
    // sd a5, -24(s0)
    let uop = decode(0xfef4_3423);
    assert_eq!((uop.op, uop.imm), (Op::Sd, -24));
    assert_eq!(decode(0).class(), Class::Illegal);
    assert_eq!(decode(0xffff_ffff).class(), Class::Illegal);
    // add x0, x0, x5: ntl.all
    assert_eq!(decode(0x0050_0033).op, Op::NtlHint);
}

#[test]
fn execute_of_taken_branch_gives_its_target() {
    let o = Operands { a: 3, b: 3, pc: 0x1000, ..Operands::default() };
    assert_eq!(execute(&decode(0xfe00_0ee3), &o).map(|out| out.next), Some(0xffc));
}

#[test]
fn execute_with_reserved_rounding_mode_is_refused() {
    // fadd.s f0, f1, f2, dyn
    let uop = decode(0x0020_f053);
    assert_eq!(uop.op, Op::FaddS);
    assert_eq!(execute(&uop, &Operands { frm: 5, ..Operands::default() }), None);
    assert!(execute(&uop, &Operands::default()).is_some());
}

/// A small generator for operands: half of them near the edges of the format.
fn operand(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    let bits = *state ^ *state >> 29;
    match *state >> 61 {
        0 => bits & 0x800f_ffff_ffff_ffff,
        1 => bits | 0x7ff0_0000_0000_0000,
        2 => bits & 0x8000_0000_0000_0000 | 0x3ff0_0000_0000_0000 | bits & 7,
        3 => bits & !0x000f_ffff_ffff_fff8,
        _ => bits,
    }
}

#[test]
fn arithmetic_on_doubles_equals_the_host_to_nearest_even() {
    let mut seed = 1;
    for _ in 0..200_000 {
        let (a, b, c) = (operand(&mut seed), operand(&mut seed), operand(&mut seed));
        let (x, y, z) = (f64::from_bits(a), f64::from_bits(b), f64::from_bits(c));
        let mut flags = 0;
        let same = |got: u64, want: f64| got == want.to_bits() || (f64::from_bits(got).is_nan() && want.is_nan());
        // No flag raised: the exact path is taken.
        let (f, r) = (Format::Double, Round::NearestEven);
        assert!(same(add(f, a, b, r, 0, &mut flags), x + y), "{a:#x} + {b:#x}");
        assert!(same(mul(f, a, b, r, 0, &mut flags), x * y), "{a:#x} * {b:#x}");
        assert!(same(div(f, a, b, r, 0, &mut flags), x / y), "{a:#x} / {b:#x}");
        assert!(same(sqrt(f, a, r, 0, &mut flags), x.sqrt()), "sqrt {a:#x}");
        assert!(same(fma(f, a, b, c, r, 0, &mut flags), x.mul_add(y, z)), "{a:#x} * {b:#x} + {c:#x}");
    }
}

#[test]
fn fast_path_of_arithmetic_raises_and_returns_what_the_exact_path_does() {
    let mut seed = 7;
    for _ in 0..100_000 {
        let (a, b, c) = (operand(&mut seed), operand(&mut seed), operand(&mut seed));
        for operation in [add, mul, div] {
            let (mut exact, mut fast) = (NX, NX);
            let r = Round::NearestEven;
            assert_eq!(
                operation(Format::Double, a, b, r, 0, &mut exact),
                operation(Format::Double, a, b, r, NX, &mut fast)
            );
            assert_eq!(exact, fast, "{a:#x} {b:#x}");
        }
        let (mut exact, mut fast) = (NX, NX);
        let r = Round::NearestEven;
        assert_eq!(fma(Format::Double, a, b, c, r, 0, &mut exact), fma(Format::Double, a, b, c, r, NX, &mut fast));
        assert_eq!(exact, fast, "{a:#x} {b:#x} {c:#x}");
    }
}

#[test]
fn decode_of_any_bits_gives_a_uop_that_can_be_described() {
    let mut described = 0;
    let mut state = 9u64;
    let all16 = (0..=0xffffu32).filter(|bits| bits & 3 != 3);
    let some32 = std::iter::repeat_with(|| operand(&mut state) as u32 | 3).take(500_000);
    for bits in all16.chain(some32) {
        let uop = decode(bits);
        assert_eq!(uop.len, if bits & 3 == 3 { 4 } else { 2 });
        assert!(uop.rd < 32 && uop.rs1 < 32 && uop.rs2 < 32 && uop.rs3 < 32, "{bits:#x}");
        described += usize::from(!uop.to_string().is_empty());
        assert!(uop.sources().len() == 3 && uop.dest() != Some(Reg::X(0)), "{bits:#x}");
    }
    assert!(described > 500_000);
}
