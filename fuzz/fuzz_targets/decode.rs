//! Any bits as an instruction: decoding and printing end, and the length is what the encoding says.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    for bits in data.chunks_exact(4) {
        let raw = u32::from_le_bytes([bits[0], bits[1], bits[2], bits[3]]);
        let uop = towpath_isa::decode(raw);
        assert_eq!(uop.len, if raw & 3 == 3 { 4 } else { 2 }, "{raw:#010x}");
        assert!(!uop.to_string().is_empty());
    }
});
