//! riscv64 ELF executables: what is to be put where. Every offset of the file is checked before it is used.

use crate::error::Error;
use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

/// One loadable part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address, before the load bias.
    pub address: u64,
    /// Physical address, for bare-metal programs.
    pub physical: u64,
    /// Bytes in memory; those beyond the data are zero.
    pub size: u64,
    /// Where its bytes are in the file.
    pub data: std::ops::Range<usize>,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
}

/// A parsed executable.
#[derive(Clone, Debug)]
pub struct Image {
    /// First instruction, before the load bias.
    pub entry: u64,
    /// Position-independent: may be loaded anywhere.
    pub relocatable: bool,
    /// Parts in ascending order of address.
    pub segments: Vec<Segment>,
    /// The dynamic loader it asks for.
    pub interpreter: Option<String>,
    /// Address of the program headers in memory, before the load bias; 0 if not loaded.
    pub headers: u64,
    /// How many program headers.
    pub header_count: u64,
}

/// The highest user address under Sv39.
pub const USER_END: u64 = 1 << 38;
const PHENT: u64 = 56;

impl Image {
    /// Checks `data` as an executable named `program`.
    ///
    /// # Errors
    /// [`Error::Program`]: not ELF, truncated, another architecture, or segments that make no sense.
    pub fn parse(program: &str, data: &[u8]) -> Result<Image, Error> {
        parse(data).map_err(|why| Error::Program { program: program.to_string(), why })
    }

    /// One past the highest address used, before the load bias.
    pub fn end(&self) -> u64 {
        self.segments.iter().map(|s| s.address + s.size).max().unwrap_or(0)
    }

    /// The lowest address used, before the load bias.
    pub fn start(&self) -> u64 {
        self.segments.iter().map(|s| s.address).min().unwrap_or(0)
    }
}

fn parse(data: &[u8]) -> Result<Image, String> {
    let e = LittleEndian;
    if data.len() < 4 || data[..4] != elf::ELFMAG {
        return Err("not an ELF file".into());
    }
    if data.get(4) == Some(&elf::ELFCLASS32) {
        return Err("a 32-bit ELF file; the machine runs riscv64".into());
    }
    let header =
        elf::FileHeader64::<LittleEndian>::parse(data).map_err(|error| format!("damaged ELF header: {error}"))?;
    if !header.is_supported() || header.is_big_endian() {
        return Err("not a little-endian 64-bit ELF file".into());
    }
    let machine = header.e_machine.get(e);
    if machine != elf::EM_RISCV {
        return Err(format!("built for {}, but the machine runs riscv64", architecture(machine)));
    }
    let kind = header.e_type.get(e);
    if kind != elf::ET_EXEC && kind != elf::ET_DYN {
        return Err(format!("ELF type {kind} is not an executable"));
    }
    let headers = header.program_headers(e, data).map_err(|error| format!("truncated: {error}"))?;
    let mut image = Image {
        entry: header.e_entry.get(e),
        relocatable: kind == elf::ET_DYN,
        segments: Vec::new(),
        interpreter: None,
        headers: 0,
        header_count: headers.len() as u64,
    };
    let table = header.e_phoff.get(e);
    for part in headers {
        match part.p_type(e) {
            elf::PT_LOAD => image.segments.push(segment(part, data)?),
            elf::PT_INTERP => {
                let bytes = part.data(e, data).map_err(|()| "truncated: the interpreter's name lies beyond the end")?;
                let name = bytes.strip_suffix(&[0]).unwrap_or(bytes);
                let name = std::str::from_utf8(name).map_err(|_| "the interpreter's name is not text")?;
                image.interpreter = Some(name.to_string());
            }
            elf::PT_PHDR => image.headers = part.p_vaddr(e),
            _ => {}
        }
    }
    check_segments(&mut image)?;
    if image.headers == 0 {
        // Without PT_PHDR the table is wherever the segment that covers its offset puts it.
        image.headers = image
            .segments
            .iter()
            .find(|s| (s.data.start as u64..s.data.end as u64).contains(&table))
            .map_or(0, |s| s.address + (table - s.data.start as u64));
    }
    if image.header_count * PHENT > 1 << 16 {
        return Err(format!("{} program headers; that is no sensible program", image.header_count));
    }
    Ok(image)
}

fn segment(part: &elf::ProgramHeader64<LittleEndian>, data: &[u8]) -> Result<Segment, String> {
    let e = LittleEndian;
    let (offset, filled) = (part.p_offset(e), part.p_filesz(e));
    let end = offset.checked_add(filled).filter(|&end| end <= data.len() as u64).ok_or_else(|| {
        format!("truncated: a segment needs bytes {offset} to {} of {}", offset.saturating_add(filled), data.len())
    })?;
    let (address, size) = (part.p_vaddr(e), part.p_memsz(e));
    if size < filled {
        return Err(format!("the segment at {address:#x} has more bytes in the file than in memory"));
    }
    let flags = part.p_flags(e);
    Ok(Segment {
        address,
        physical: part.p_paddr(e),
        size,
        data: offset as usize..end as usize,
        read: flags & elf::PF_R != 0,
        write: flags & elf::PF_W != 0,
        execute: flags & elf::PF_X != 0,
    })
}

fn check_segments(image: &mut Image) -> Result<(), String> {
    image.segments.retain(|s| s.size > 0);
    image.segments.sort_by_key(|s| s.address);
    if image.segments.is_empty() {
        return Err("nothing to load".into());
    }
    let mut end = 0;
    for s in &image.segments {
        let stop =
            s.address.checked_add(s.size).ok_or_else(|| format!("the segment at {:#x} wraps around", s.address))?;
        if s.address < end {
            return Err(format!("segments overlap at {:#x}", s.address));
        }
        end = stop;
    }
    Ok(())
}

fn architecture(machine: u16) -> String {
    match machine {
        elf::EM_X86_64 => "x86-64".into(),
        elf::EM_AARCH64 => "AArch64".into(),
        elf::EM_386 => "i386".into(),
        elf::EM_ARM => "ARM".into(),
        elf::EM_PPC64 => "PowerPC".into(),
        elf::EM_S390 => "S/390".into(),
        other => format!("machine number {other}"),
    }
}
