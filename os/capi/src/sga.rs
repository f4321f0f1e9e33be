//! Scatter-gather arrays: plain pointers for C, and a hold that keeps the bytes behind them.

use crate::failure::{Failure, Outcome, guard, place};
use crate::runtime::{Os, enter};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use towpath_cbuf::{Buf, Memory, Sga};

/// `TP_SEGMENTS_MAX`.
pub const SEGMENTS_MAX: usize = 16;

/// `struct tp_segment`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CSegment {
    base: *mut c_void,
    len: usize,
}

/// `struct tp_sga`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CSga {
    segments: u32,
    reserved: u32,
    segment: [CSegment; SEGMENTS_MAX],
    hold: *mut Hold,
}

const MAGIC: u64 = 0x746f_7770_6174_6802;

/// `struct tp_hold`: the references behind an array.
pub struct Hold {
    magic: u64,
    sga: Sga,
}

impl CSga {
    /// No bytes, no hold.
    pub const EMPTY: CSga = CSga {
        segments: 0,
        reserved: 0,
        segment: [CSegment { base: std::ptr::null_mut(), len: 0 }; SEGMENTS_MAX],
        hold: std::ptr::null_mut(),
    };

    /// Hands an array out to C, which frees it. More segments than fit are joined into one (a counted copy).
    pub fn hand_out(sga: Sga, memory: &Memory) -> Outcome<CSga> {
        if sga.is_empty() {
            return Ok(CSga::EMPTY);
        }
        let sga = if sga.segments().len() > SEGMENTS_MAX { Sga::from(sga.to_contiguous(memory)?) } else { sga };
        let mut out = CSga { segments: sga.segments().len() as u32, ..CSga::EMPTY };
        for (to, from) in out.segment.iter_mut().zip(sga.segments()) {
            *to = CSegment { base: from.as_ptr().cast_mut().cast(), len: from.len() };
        }
        out.hold = Box::into_raw(Box::new(Hold { magic: MAGIC, sga }));
        Ok(out)
    }

    /// The segments C has filled in.
    fn parts(&self) -> Outcome<&[CSegment]> {
        self.segment
            .get(..self.segments as usize)
            .ok_or_else(|| Failure::invalid(format!("{} segments, at most {SEGMENTS_MAX}", self.segments)))
    }

    /// The hold, if there is one.
    ///
    /// # Safety
    /// `hold` is null or its memory can be read.
    unsafe fn hold<'a>(&self) -> Outcome<Option<&'a Hold>> {
        if self.hold.is_null() {
            return Ok(None);
        }
        if !self.hold.is_aligned() {
            return Err(Failure::invalid("the array's hold is none"));
        }
        // SAFETY: the caller's contract; the magic number tells whether it is one.
        let hold = unsafe { &*self.hold };
        if hold.magic != MAGIC {
            return Err(Failure::invalid("the array was freed, or its hold is none"));
        }
        Ok(Some(hold))
    }

    /// References to exactly the bytes the segments name.
    ///
    /// # Safety
    /// As [`CSga::hold`]; without a hold the segments lie in live memory of `tp_malloc`.
    pub unsafe fn take_up(&self, memory: &Memory) -> Outcome<Sga> {
        // SAFETY: the caller's contract.
        let hold = unsafe { self.hold()? };
        let mut out = Sga::new();
        for part in self.parts()?.iter().filter(|p| p.len > 0) {
            let buf = match hold {
                Some(hold) => within(&hold.sga, part)?,
                None => {
                    let base = NonNull::new(part.base.cast::<u8>());
                    let base = base.ok_or_else(|| Failure::invalid("a segment's base is NULL"))?;
                    // SAFETY: `hold` checks that the bytes lie in one live object of the heap; that they are not
                    // written meanwhile is the contract of push.
                    unsafe { memory.hold(base, part.len)? }
                }
            };
            out.push_back(buf);
        }
        Ok(out)
    }
}

/// The view of `part`, which must lie inside one segment of what is held.
fn within(held: &Sga, part: &CSegment) -> Outcome<Buf> {
    let base = part.base.addr();
    for buf in held.segments() {
        let start = buf.as_ptr().addr();
        if base >= start && base - start <= buf.len() && part.len <= buf.len() - (base - start) {
            return Ok(buf.slice(base - start..base - start + part.len));
        }
    }
    Err(Failure::invalid("a segment lies outside the bytes of its array"))
}

/// Bytes for a message of `len`, in one segment of undefined contents, to be filled and pushed.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `sga` is null or points to a place for the array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_sga_alloc(os: *mut Os, len: usize, sga: *mut CSga) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, to) = unsafe { (enter(os)?, place(sga, "sga")?) };
        let memory = os.runtime.memory();
        to.write(CSga::hand_out(Sga::from(memory.alloc(len)?.freeze()), memory)?);
        Ok(0)
    })
}

/// Gives an array back. Its bytes are reused when nothing refers to them any more. An empty one may be freed too.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `sga` is null or points to an array whose hold can be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_sga_free(os: *mut Os, sga: *mut CSga) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (_, sga) = unsafe { (enter(os)?, sga.as_mut().ok_or_else(|| Failure::invalid("sga is NULL"))?) };
        // SAFETY: as above.
        if unsafe { sga.hold()? }.is_some() {
            // SAFETY: the magic number says that it is a hold, made by Box::into_raw and not freed.
            let mut hold = unsafe { Box::from_raw(sga.hold) };
            // SAFETY: the box is ours; volatile, so that the mark survives the box.
            unsafe { (&raw mut hold.magic).write_volatile(0) };
        }
        *sga = CSga::EMPTY;
        Ok(0)
    })
}

/// A second array for the same bytes, by reference.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `sga` and `copy` are null or point to an array and a place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_sga_clone(os: *mut Os, sga: *const CSga, copy: *mut CSga) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (os, sga, to) = unsafe {
            let sga = sga.as_ref().ok_or_else(|| Failure::invalid("sga is NULL"))?;
            (enter(os)?, sga, place(copy, "copy")?)
        };
        let memory = os.runtime.memory();
        // SAFETY: as above.
        to.write(CSga::hand_out(unsafe { sga.take_up(memory)? }, memory)?);
        Ok(0)
    })
}

/// 1 if the program is the only one that refers to the bytes and may write them, else 0.
///
/// # Safety
/// `os` is null or a handle of `tp_start`; `sga` is null or points to an array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_sga_writable(os: *mut Os, sga: *const CSga) -> c_int {
    guard(|| {
        // SAFETY: the caller's contract.
        let (_, sga) = unsafe { (enter(os)?, sga.as_ref().ok_or_else(|| Failure::invalid("sga is NULL"))?) };
        // SAFETY: as above.
        let Some(hold) = (unsafe { sga.hold()? }) else {
            return Err(Failure::new(
                libc::EOPNOTSUPP,
                "an array without a hold does not know who refers to its bytes",
            ));
        };
        Ok(c_int::from(hold.sga.segments().iter().all(Buf::is_unique)))
    })
}

/// Bytes in all segments; 0 for NULL or an array with too many segments.
///
/// # Safety
/// `sga` is null or points to an array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tp_sga_len(sga: *const CSga) -> usize {
    // SAFETY: the caller's contract.
    let Some(sga) = (unsafe { sga.as_ref() }) else { return 0 };
    sga.parts().map_or(0, |parts| parts.iter().fold(0, |sum: usize, part| sum.saturating_add(part.len)))
}
