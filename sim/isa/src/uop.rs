//! Decoded instructions. One table says for each operation its mnemonic, its class and which registers it touches;
//! cores schedule by it, the disassembler prints by it, the decoders only name operations.

/// What kind of unit an operation needs; timing cores map classes to latencies and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Integer operation of one cycle.
    Alu,
    /// Integer multiplication.
    Mul,
    /// Integer division.
    Div,
    /// Conditional branch.
    Branch,
    /// `jal`, `jalr`.
    Jump,
    /// Integer load.
    Load,
    /// Integer store.
    Store,
    /// Atomic read-modify-write, `lr`, `sc`.
    Amo,
    /// Load to a floating-point register.
    FpLoad,
    /// Store of a floating-point register.
    FpStore,
    /// Floating-point add, compare, convert, move, sign.
    FpAlu,
    /// Floating-point multiply and fused multiply-add.
    FpMul,
    /// Floating-point divide and square root.
    FpDiv,
    /// Reads or writes a control register; runs alone, at commit.
    Csr,
    /// `fence`, `fence.i`: orders memory; runs at commit.
    Fence,
    /// `ecall`, `ebreak`, returns, `wfi`, `sfence.vma`; runs alone, at commit.
    System,
    /// Zicbom and Zicboz: acts on the cache block that holds the address.
    CacheOp,
    /// `MCLAZY` and `MCFREE`: deferred copy; not speculative.
    Lazy,
    /// `vsetvli` and its kin.
    VectorConfig,
    /// Vector operation on registers only.
    VectorAlu,
    /// Vector load.
    VectorLoad,
    /// Vector store.
    VectorStore,
    /// Not an instruction: raises illegal instruction.
    Illegal,
}

/// A scalar register an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reg {
    /// Integer register; `X(0)` never appears as a destination.
    X(u8),
    /// Floating-point register.
    F(u8),
}

/// Which operands an operation has, in the order of rd, rs1, rs2, rs3.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// None.
    N,
    /// rd.
    D,
    /// rd, rs1.
    I,
    /// rd, rs1, rs2.
    R,
    /// rs1, rs2.
    S,
    /// rs1.
    A,
    /// rs1, rs2, rs3.
    T,
    /// fd, rs1.
    Fx,
    /// rs1, fs2.
    Sf,
    /// fd, fs1.
    Ff,
    /// fd, fs1, fs2.
    Fff,
    /// fd, fs1, fs2, fs3.
    Ffff,
    /// rd, fs1.
    Xf,
    /// rd, fs1, fs2.
    Xff,
    /// Vector: read from the bits.
    V,
}

macro_rules! operations {
    ($($name:ident $mnemonic:literal $class:ident $shape:ident),* $(,)?) => {
        /// Every operation, one a mnemonic; immediates have operations of their own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Op { $(#[doc = concat!("`", $mnemonic, "`")] $name),* }

        impl Op {
            /// Every operation, in order.
            pub const ALL: &'static [Op] = &[$(Op::$name),*];

            /// The assembler's name.
            pub const fn mnemonic(self) -> &'static str {
                match self { $(Op::$name => $mnemonic),* }
            }

            /// The kind of unit it needs.
            pub const fn class(self) -> Class {
                match self { $(Op::$name => Class::$class),* }
            }

            const fn shape(self) -> Shape {
                match self { $(Op::$name => Shape::$shape),* }
            }
        }
    };
}

operations! {
    Illegal "illegal" Illegal N, Nop "nop" Alu N,
    Lui "lui" Alu D, Auipc "auipc" Alu D,
    Addi "addi" Alu I, Slti "slti" Alu I, Sltiu "sltiu" Alu I, Xori "xori" Alu I, Ori "ori" Alu I, Andi "andi" Alu I,
    Slli "slli" Alu I, Srli "srli" Alu I, Srai "srai" Alu I,
    Addiw "addiw" Alu I, Slliw "slliw" Alu I, Srliw "srliw" Alu I, Sraiw "sraiw" Alu I,
    Add "add" Alu R, Sub "sub" Alu R, Sll "sll" Alu R, Slt "slt" Alu R, Sltu "sltu" Alu R, Xor "xor" Alu R,
    Srl "srl" Alu R, Sra "sra" Alu R, Or "or" Alu R, And "and" Alu R,
    Addw "addw" Alu R, Subw "subw" Alu R, Sllw "sllw" Alu R, Srlw "srlw" Alu R, Sraw "sraw" Alu R,
    Mul "mul" Mul R, Mulh "mulh" Mul R, Mulhsu "mulhsu" Mul R, Mulhu "mulhu" Mul R, Mulw "mulw" Mul R,
    Div "div" Div R, Divu "divu" Div R, Rem "rem" Div R, Remu "remu" Div R,
    Divw "divw" Div R, Divuw "divuw" Div R, Remw "remw" Div R, Remuw "remuw" Div R,
    AddUw "add.uw" Alu R, Sh1add "sh1add" Alu R, Sh2add "sh2add" Alu R, Sh3add "sh3add" Alu R,
    Sh1addUw "sh1add.uw" Alu R, Sh2addUw "sh2add.uw" Alu R, Sh3addUw "sh3add.uw" Alu R, SlliUw "slli.uw" Alu I,
    Andn "andn" Alu R, Orn "orn" Alu R, Xnor "xnor" Alu R,
    Clz "clz" Alu I, Ctz "ctz" Alu I, Cpop "cpop" Alu I, Clzw "clzw" Alu I, Ctzw "ctzw" Alu I, Cpopw "cpopw" Alu I,
    Max "max" Alu R, Maxu "maxu" Alu R, Min "min" Alu R, Minu "minu" Alu R,
    SextB "sext.b" Alu I, SextH "sext.h" Alu I, ZextH "zext.h" Alu I,
    Rol "rol" Alu R, Ror "ror" Alu R, Rori "rori" Alu I, Rolw "rolw" Alu R, Rorw "rorw" Alu R, Roriw "roriw" Alu I,
    OrcB "orc.b" Alu I, Rev8 "rev8" Alu I,
    Bclr "bclr" Alu R, Bext "bext" Alu R, Binv "binv" Alu R, Bset "bset" Alu R,
    Bclri "bclri" Alu I, Bexti "bexti" Alu I, Binvi "binvi" Alu I, Bseti "bseti" Alu I,
    NtlHint "ntl" Alu N, Pause "pause" Alu N, Prefetch "prefetch" Alu A,
    Beq "beq" Branch S, Bne "bne" Branch S, Blt "blt" Branch S, Bge "bge" Branch S, Bltu "bltu" Branch S,
    Bgeu "bgeu" Branch S, Jal "jal" Jump D, Jalr "jalr" Jump I,
    Lb "lb" Load I, Lh "lh" Load I, Lw "lw" Load I, Ld "ld" Load I, Lbu "lbu" Load I, Lhu "lhu" Load I,
    Lwu "lwu" Load I, Sb "sb" Store S, Sh "sh" Store S, Sw "sw" Store S, Sd "sd" Store S,
    LrW "lr.w" Amo I, LrD "lr.d" Amo I, ScW "sc.w" Amo R, ScD "sc.d" Amo R,
    AmoswapW "amoswap.w" Amo R, AmoaddW "amoadd.w" Amo R, AmoxorW "amoxor.w" Amo R, AmoandW "amoand.w" Amo R,
    AmoorW "amoor.w" Amo R, AmominW "amomin.w" Amo R, AmomaxW "amomax.w" Amo R, AmominuW "amominu.w" Amo R,
    AmomaxuW "amomaxu.w" Amo R,
    AmoswapD "amoswap.d" Amo R, AmoaddD "amoadd.d" Amo R, AmoxorD "amoxor.d" Amo R, AmoandD "amoand.d" Amo R,
    AmoorD "amoor.d" Amo R, AmominD "amomin.d" Amo R, AmomaxD "amomax.d" Amo R, AmominuD "amominu.d" Amo R,
    AmomaxuD "amomaxu.d" Amo R,
    Fence "fence" Fence N, FenceI "fence.i" Fence N,
    Ecall "ecall" System N, Ebreak "ebreak" System N, Sret "sret" System N, Mret "mret" System N, Wfi "wfi" System N,
    SfenceVma "sfence.vma" System S,
    Csrrw "csrrw" Csr I, Csrrs "csrrs" Csr I, Csrrc "csrrc" Csr I,
    Csrrwi "csrrwi" Csr D, Csrrsi "csrrsi" Csr D, Csrrci "csrrci" Csr D,
    CboInval "cbo.inval" CacheOp A, CboClean "cbo.clean" CacheOp A, CboFlush "cbo.flush" CacheOp A,
    CboZero "cbo.zero" CacheOp A, McLazy "mclazy" Lazy T, McFree "mcfree" Lazy S,
    Flw "flw" FpLoad Fx, Fld "fld" FpLoad Fx, Fsw "fsw" FpStore Sf, Fsd "fsd" FpStore Sf,
    FmaddS "fmadd.s" FpMul Ffff, FmsubS "fmsub.s" FpMul Ffff, FnmsubS "fnmsub.s" FpMul Ffff,
    FnmaddS "fnmadd.s" FpMul Ffff, FaddS "fadd.s" FpAlu Fff, FsubS "fsub.s" FpAlu Fff, FmulS "fmul.s" FpMul Fff,
    FdivS "fdiv.s" FpDiv Fff, FsqrtS "fsqrt.s" FpDiv Ff, FsgnjS "fsgnj.s" FpAlu Fff, FsgnjnS "fsgnjn.s" FpAlu Fff,
    FsgnjxS "fsgnjx.s" FpAlu Fff, FminS "fmin.s" FpAlu Fff, FmaxS "fmax.s" FpAlu Fff, FcvtWS "fcvt.w.s" FpAlu Xf,
    FcvtWuS "fcvt.wu.s" FpAlu Xf, FcvtLS "fcvt.l.s" FpAlu Xf, FcvtLuS "fcvt.lu.s" FpAlu Xf, FmvXW "fmv.x.w" FpAlu Xf,
    FeqS "feq.s" FpAlu Xff, FltS "flt.s" FpAlu Xff, FleS "fle.s" FpAlu Xff, FclassS "fclass.s" FpAlu Xf,
    FcvtSW "fcvt.s.w" FpAlu Fx, FcvtSWu "fcvt.s.wu" FpAlu Fx, FcvtSL "fcvt.s.l" FpAlu Fx,
    FcvtSLu "fcvt.s.lu" FpAlu Fx, FmvWX "fmv.w.x" FpAlu Fx,
    FmaddD "fmadd.d" FpMul Ffff, FmsubD "fmsub.d" FpMul Ffff, FnmsubD "fnmsub.d" FpMul Ffff,
    FnmaddD "fnmadd.d" FpMul Ffff, FaddD "fadd.d" FpAlu Fff, FsubD "fsub.d" FpAlu Fff, FmulD "fmul.d" FpMul Fff,
    FdivD "fdiv.d" FpDiv Fff, FsqrtD "fsqrt.d" FpDiv Ff, FsgnjD "fsgnj.d" FpAlu Fff, FsgnjnD "fsgnjn.d" FpAlu Fff,
    FsgnjxD "fsgnjx.d" FpAlu Fff, FminD "fmin.d" FpAlu Fff, FmaxD "fmax.d" FpAlu Fff, FcvtSD "fcvt.s.d" FpAlu Ff,
    FcvtDS "fcvt.d.s" FpAlu Ff, FcvtWD "fcvt.w.d" FpAlu Xf, FcvtWuD "fcvt.wu.d" FpAlu Xf, FcvtLD "fcvt.l.d" FpAlu Xf,
    FcvtLuD "fcvt.lu.d" FpAlu Xf, FmvXD "fmv.x.d" FpAlu Xf, FeqD "feq.d" FpAlu Xff, FltD "flt.d" FpAlu Xff,
    FleD "fle.d" FpAlu Xff, FclassD "fclass.d" FpAlu Xf, FcvtDW "fcvt.d.w" FpAlu Fx, FcvtDWu "fcvt.d.wu" FpAlu Fx,
    FcvtDL "fcvt.d.l" FpAlu Fx, FcvtDLu "fcvt.d.lu" FpAlu Fx, FmvDX "fmv.d.x" FpAlu Fx,
    Vsetvli "vsetvli" VectorConfig I, Vsetivli "vsetivli" VectorConfig D, Vsetvl "vsetvl" VectorConfig R,
    VLoad "vload" VectorLoad V, VStore "vstore" VectorStore V, VArith "varith" VectorAlu V,
}

/// A decoded instruction: 16 bytes, plain data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uop {
    /// What to do.
    pub op: Op,
    /// Destination register number (integer, floating-point or vector by `op`).
    pub rd: u8,
    /// First source.
    pub rs1: u8,
    /// Second source.
    pub rs2: u8,
    /// Third source.
    pub rs3: u8,
    /// Length in bytes: 2 or 4.
    pub len: u8,
    /// The instruction's rounding-mode field (floating point), `aq`/`rl` bits (atomics), else 0.
    pub rm: u8,
    /// Sign-extended immediate, shift amount, or CSR number (immediate of `csrr?i` in `rs1`).
    pub imm: i32,
    /// The bits, zero-extended when compressed.
    pub raw: u32,
}

const _: () = assert!(size_of::<Uop>() == 16);

impl Uop {
    /// A uop of `op` with no operands and these bits.
    pub const fn new(op: Op, raw: u32, len: u8) -> Uop {
        Uop { op, rd: 0, rs1: 0, rs2: 0, rs3: 0, len, rm: 0, imm: 0, raw }
    }

    /// The kind of unit it needs.
    pub const fn class(&self) -> Class {
        self.op.class()
    }

    /// The scalar registers read, in the order of [`crate::Operands`]' `a`, `b`, `c`; `X(0)` reads as zero.
    /// Vector operations report their scalar operands only; their vector registers are named by the bits.
    pub fn sources(&self) -> [Option<Reg>; 3] {
        let (x, f) = (Reg::X, Reg::F);
        match self.op.shape() {
            Shape::N | Shape::D => [None; 3],
            Shape::I | Shape::A | Shape::Fx => [Some(x(self.rs1)), None, None],
            Shape::R | Shape::S => [Some(x(self.rs1)), Some(x(self.rs2)), None],
            Shape::T => [Some(x(self.rs1)), Some(x(self.rs2)), Some(x(self.rs3))],
            Shape::Sf => [Some(x(self.rs1)), Some(f(self.rs2)), None],
            Shape::Ff | Shape::Xf => [Some(f(self.rs1)), None, None],
            Shape::Fff | Shape::Xff => [Some(f(self.rs1)), Some(f(self.rs2)), None],
            Shape::Ffff => [Some(f(self.rs1)), Some(f(self.rs2)), Some(f(self.rs3))],
            Shape::V => crate::vector::scalar_sources(self),
        }
    }

    /// The scalar register written, if any; a write to `x0` is none.
    pub fn dest(&self) -> Option<Reg> {
        match self.op.shape() {
            Shape::D | Shape::I | Shape::R | Shape::Xf | Shape::Xff => (self.rd != 0).then_some(Reg::X(self.rd)),
            Shape::Fx | Shape::Ff | Shape::Fff | Shape::Ffff => Some(Reg::F(self.rd)),
            Shape::N | Shape::S | Shape::A | Shape::T | Shape::Sf => None,
            Shape::V => crate::vector::scalar_dest(self),
        }
    }

    /// Whether it may change the flow of control or the meaning of later instructions: a decoded block ends with it.
    pub const fn ends_block(&self) -> bool {
        matches!(self.class(), Class::Branch | Class::Jump | Class::Csr | Class::System | Class::Illegal)
            || matches!(self.op, Op::FenceI | Op::Pause)
    }
}

impl std::fmt::Display for Uop {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.op.mnemonic())?;
        let mut separator = ' ';
        let mut item = |out: &mut std::fmt::Formatter<'_>, text: String| {
            let written = write!(out, "{separator}{text}");
            separator = ',';
            written
        };
        let name = |reg: Reg| match reg {
            Reg::X(n) => format!("x{n}"),
            Reg::F(n) => format!("f{n}"),
        };
        if let Some(reg) = self.dest() {
            item(out, name(reg))?;
        }
        for reg in self.sources().into_iter().flatten() {
            item(out, name(reg))?;
        }
        if self.imm != 0 {
            item(out, format!("{:#x}", self.imm))?;
        }
        Ok(())
    }
}
