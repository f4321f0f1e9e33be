//! Size classes: 16-byte steps up to 128 bytes, then four to a doubling up to 4 MB. Objects of a class lie end to end
//! in the class's region, so an object's number is its offset divided by its size, and a superblock is a run of
//! `2^k` consecutive objects that fills whole pages without waste.

/// The largest object that lives in a region; larger ones are mapped by themselves.
pub(crate) const LARGEST: usize = 4 << 20;
/// How many classes there are.
pub(crate) const COUNT: usize = 68;
/// Classes below this one are 16 bytes apart.
const FINE: usize = 8;

/// Facts of every class, looked up where the class is not known at compile time.
struct Facts {
    size: u32,
    objects_log2: u8,
    state_shift: u8,
    words: u16,
}

static FACTS: [Facts; COUNT] = {
    let mut facts = [const { Facts { size: 0, objects_log2: 0, state_shift: 0, words: 0 } }; COUNT];
    let mut class = 0;
    while class < COUNT {
        let log2 = reckon_objects_log2(class);
        facts[class] = Facts {
            size: reckon_size(class) as u32,
            objects_log2: log2 as u8,
            state_shift: 6u32.saturating_sub(log2) as u8,
            words: (1usize << log2).div_ceil(64) as u16,
        };
        class += 1;
    }
    facts
};

/// Size of the objects of class `class`, in bytes.
#[inline(always)]
pub(crate) fn size(class: usize) -> usize {
    FACTS[class].size as usize
}

pub(crate) const fn reckon_size(class: usize) -> usize {
    if class < FINE {
        (class + 1) * 16
    } else {
        let exponent = (class - FINE) / 4 + 7;
        let quarters = (class - FINE) % 4 + 1;
        (1 << exponent) + (quarters << (exponent - 2))
    }
}

/// The smallest class whose objects hold `len` bytes; `1 <= len <= LARGEST`.
#[inline(always)]
pub(crate) const fn of(len: usize) -> usize {
    if len <= 1024 {
        return SMALL[len.div_ceil(16)] as usize;
    }
    of_large(len)
}

/// Classes of lengths up to 1 KB, by 16 bytes; no bytes are an object of one.
static SMALL: [u8; 65] = {
    let mut table = [0; 65];
    let mut i = 1;
    while i < 65 {
        table[i] = if i <= 8 { i as u8 - 1 } else { of_large(i * 16) as u8 };
        i += 1;
    }
    table
};

#[inline(always)]
const fn of_large(len: usize) -> usize {
    let last = len - 1;
    let exponent = last.ilog2() as usize;
    FINE + (exponent - 7) * 4 + ((last >> (exponent - 2)) & 3)
}

/// Base-two logarithm of the number of objects in a superblock: the fewest objects that fill whole pages and reach
/// a size worth asking the system for (64 KB for small objects, up to 1 MB for large ones).
#[inline(always)]
pub(crate) fn objects_log2(class: usize) -> u32 {
    u32::from(FACTS[class].objects_log2)
}

const fn reckon_objects_log2(class: usize) -> u32 {
    let size = reckon_size(class);
    let target = if size <= 1 << 10 {
        64 << 10
    } else if size <= 8 << 10 {
        256 << 10
    } else {
        1 << 20
    };
    let mut log2 = 0;
    while size << log2 < target || !(size << log2).is_multiple_of(4096) {
        log2 += 1;
    }
    log2
}

/// Shift from an object's number to its state byte: superblocks of fewer than 64 objects spread their states so that
/// two superblocks, which may belong to two cores, never share a cache line.
#[inline(always)]
pub(crate) fn state_shift(class: usize) -> u32 {
    u32::from(FACTS[class].state_shift)
}

/// Words of the free bitmap of one superblock; a word is never shared by two.
pub(crate) fn words(class: usize) -> usize {
    usize::from(FACTS[class].words)
}

/// What a magazine of the class holds at most: 1 MB up to 64 KB, so that batches stay inside it, and a few objects
/// above, where a slow path is cheap beside the use of the memory; all magazines together hold less than 60 MB.
pub(crate) fn magazine(class: usize) -> u32 {
    match size(class) {
        0..=0x1_0000 => ((1 << 20) / size(class) as u32).min(MAGAZINE_MAX),
        0x1_0001..=0x4_0000 => 4,
        0x4_0001..=0x10_0000 => 2,
        _ => 1,
    }
}

/// Slots reserved for a magazine.
pub(crate) const MAGAZINE_MAX: u32 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_of_every_length_is_the_smallest_that_fits() {
        assert_eq!(size(COUNT - 1), LARGEST);
        let mut lens: Vec<usize> = (1..5000).collect();
        for class in 0..COUNT {
            lens.extend([size(class) - 1, size(class), size(class) + 1]);
        }
        for len in lens.into_iter().filter(|&l| (1..=LARGEST).contains(&l)) {
            let class = of(len);
            assert!(size(class) >= len, "{len} does not fit class {class}");
            assert!(class == 0 || size(class - 1) < len, "{len} fits the class below {class}");
        }
    }

    #[test]
    fn superblock_of_every_class_fills_whole_pages_and_lines() {
        for class in 0..COUNT {
            let objects = 1usize << objects_log2(class);
            assert_eq!(size(class) * objects % 4096, 0);
            assert_eq!((objects << state_shift(class)) % 64, 0, "states of class {class} share a line");
            assert!(magazine(class) <= MAGAZINE_MAX && magazine(class) >= 1);
        }
    }

    #[test]
    fn magazines_of_all_classes_hold_a_bounded_sum() {
        let sum: usize = (0..COUNT).map(|class| magazine(class) as usize * size(class)).sum();
        assert!(sum < 60 << 20, "{sum} bytes");
    }
}
