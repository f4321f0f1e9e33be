use crate::{Hart, Op, decode};

fn configured(avl: u64, vtype: u64) -> Hart {
    let mut hart = Hart::new(0);
    let uop = decode(0x80c5_f557); // vsetvl a0, a1, a2
    assert_eq!(uop.op, Op::Vsetvl);
    hart.v.configure(&uop, avl, vtype);
    hart
}

#[test]
fn vsetvl_with_lmul_8_bytes_gives_128_elements() {
    let hart = configured(1000, 3);
    assert_eq!((hart.v.vl, hart.v.sew(), hart.v.lmul()), (128, 1, 3));
}

#[test]
fn vsetvl_with_reserved_fraction_sets_vill() {
    // SEW 64 with LMUL 1/2: less than one element of room per ELEN.
    let hart = configured(4, 0b011_111);
    assert_eq!((hart.v.vill, hart.v.vl, hart.v.vtype_bits()), (true, 0, 1 << 63));
}

#[test]
fn add_of_masked_elements_keeps_the_others() {
    let mut hart = configured(4, 0b010_000);
    for i in 0..4 {
        hart.v.set(2, i, 4, i as u64);
        hart.v.set(3, i, 4, 100);
        hart.v.set(1, i, 4, 7);
    }
    hart.v.set(0, 0, 1, 0b0101);
    // vadd.vv v1, v2, v3, v0.t
    let uop = decode(2 << 20 | 3 << 15 | 1 << 7 | 0x57);
    crate::vector::arith(&mut hart.v, &uop, 0).expect("legal");
    let got: Vec<u64> = (0..4).map(|i| hart.v.get(1, i, 4)).collect();
    assert_eq!(got, [100, 7, 102, 7]);
}
