//! What the planner must know of x86_64: instructions, and how functions are called.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction as Decoded, Mnemonic, OpKind};

/// Integer arguments that travel in registers (System V ABI: rdi, rsi, rdx, rcx, r8, r9).
pub const REGISTER_ARGUMENTS: u8 = 6;
/// The numbers that the processor has for them.
pub const REGISTERS: [u8; REGISTER_ARGUMENTS as usize] = [7, 6, 2, 1, 8, 9];
/// Length of `jmp rel32`, which the kernel writes over the instructions at an optimised kprobe.
pub const JUMP: usize = 5;
/// Length of the longest instruction.
pub const LONGEST: usize = 15;

const INT3: u8 = 0xcc;
const CALL: u8 = 0xe8;
const JUMP_NEAR: u8 = 0xe9;

/// Where an instruction leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// To the next one, or nowhere: nothing that matters here.
    Plain,
    /// Does nothing; stands between blocks.
    Filler,
    /// To the function at this address, and back.
    Call(u64),
    /// To this address, always.
    Jump(u64),
    /// To this address on a condition.
    Branch(u64),
    /// A breakpoint: padding, or a kprobe on an instruction of which only the first byte is gone.
    Breakpoint,
    /// Not an instruction.
    Invalid,
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Its length in bytes, at least 1.
    pub length: usize,
    /// Where it leads.
    pub flow: Flow,
}

/// A function's instructions.
pub struct Function<'a> {
    address: u64,
    bytes: &'a [u8],
    decoder: Decoder<'a>,
    decoded: Decoded,
}

impl<'a> Function<'a> {
    /// The function with these bytes.
    pub fn new(address: u64, bytes: &'a [u8]) -> Function<'a> {
        let decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        Function { address, bytes, decoder, decoded: Decoded::default() }
    }

    /// The instruction that starts `offset` bytes into the function; `None` at its end.
    pub fn at(&mut self, offset: usize) -> Option<Instruction> {
        let invalid = Some(Instruction { length: 1, flow: Flow::Invalid });
        let first = *self.bytes.get(offset)?;
        if first == INT3 {
            return Some(Instruction { length: 1, flow: Flow::Breakpoint });
        }
        if self.decoder.set_position(offset).is_err() {
            return invalid;
        }
        self.decoder.set_ip(self.address.wrapping_add(offset as u64));
        self.decoder.decode_out(&mut self.decoded);
        let decoded = &self.decoded;
        if decoded.is_invalid() {
            return invalid;
        }
        let to = decoded.near_branch_target();
        let flow = match decoded.code() {
            Code::Call_rel32_64 => Flow::Call(to),
            Code::Jmp_rel32_64 | Code::Jmp_rel8_64 => Flow::Jump(to),
            _ if decoded.op0_kind() == OpKind::NearBranch64 => Flow::Branch(to),
            _ if decoded.mnemonic() == Mnemonic::Nop => Flow::Filler,
            _ => Flow::Plain,
        };
        Some(Instruction { length: decoded.len(), flow })
    }

    /// What a breakpoint at `offset` may hide, in so far as it leads somewhere: `call rel32` or `jmp rel32` (they
    /// look alike now, and are given as the call), or `jcc rel32`.
    pub fn hidden(&self, offset: usize) -> [Option<Instruction>; 2] {
        let destination = |length: usize| {
            let relative = self.bytes.get(offset + length - 4..offset + length)?;
            let relative = relative.try_into().map(i32::from_le_bytes).ok()?;
            let next = self.address.wrapping_add((offset + length) as u64);
            Some(next.wrapping_add_signed(i64::from(relative)))
        };
        let call = destination(5).map(|to| Instruction { length: 5, flow: Flow::Call(to) });
        let branch = match self.bytes.get(offset + 1) {
            Some(0x80..=0x8f) => destination(6).map(|to| Instruction { length: 6, flow: Flow::Branch(to) }),
            _ => None,
        };
        [call, branch]
    }
}

/// Every place that could be the last four bytes of a call or jump from `text` to one of `targets` (sorted): where
/// they stand, added to their own end, they give its address. Misses none; few of them are not what they seem.
pub fn candidates(text: &[u8], address: u64, targets: &[u64]) -> Vec<usize> {
    let (Some(&first), Some(&last)) = (targets.first(), targets.last()) else { return Vec::new() };
    // The low half tells, since the distance of a call has 32 bits; what it lets through is compared in full.
    let span = u32::try_from(last - first).unwrap_or(u32::MAX).saturating_add(1);
    let exact = |position: usize, bytes: &[u8]| {
        let relative = bytes.try_into().map(i32::from_le_bytes).unwrap_or_default();
        let next = address.wrapping_add(position as u64 + 4);
        targets.binary_search(&next.wrapping_add_signed(i64::from(relative))).is_ok()
    };
    let mut found = Vec::new();
    for start in (0..text.len()).step_by(BLOCK) {
        let rest = &text[start..];
        let base = (address.wrapping_add(start as u64 + 4).wrapping_sub(first)) as u32;
        if rest
            .first_chunk()
            .is_some_and(|block| !may_lead(block, base, span) || !leads_near(block, base, span))
        {
            continue;
        }
        let words = rest.windows(4).take(BLOCK).enumerate();
        found.extend(
            words.map(|(at, bytes)| (start + at, bytes)).filter(|&(at, b)| exact(at, b)).map(|(at, _)| at),
        );
    }
    found
}

/// Text that is looked at as a whole.
const BLOCK: usize = 256;
/// A block with the rest of the four bytes that start at its end.
type Block = [u8; BLOCK + 3];

/// Whether some four bytes have an upper half with which they could lead to a window of `span` bytes. The first
/// four of the block end `base` bytes behind the window's start.
///
/// As [`leads_near`] free of branches, so that the compiler makes vectors of it, but with twice as many lanes.
fn may_lead(block: &Block, base: u32, span: u32) -> bool {
    let lowest = 0u32.wrapping_sub(base).wrapping_sub(BLOCK as u32 - 1);
    let range = u64::from(lowest & 0xffff) + u64::from(span) + BLOCK as u64;
    let Ok(more) = u16::try_from(range >> 16) else { return true };
    let upper = (lowest >> 16) as u16;
    (2..4).any(|phase| {
        let halves = block[phase..].chunks_exact(2);
        let near = halves.fold(0, |near, bytes| {
            let half = bytes.try_into().map(u16::from_le_bytes).unwrap_or_default();
            near | u16::from(half.wrapping_sub(upper) <= more)
        });
        near != 0
    })
}

/// Whether some four bytes lead to the window.
fn leads_near(block: &Block, base: u32, span: u32) -> bool {
    (0..4).any(|phase| {
        let words = block[phase..].chunks_exact(4).zip((0u32..).step_by(4));
        let near = words.fold(0, |near, (bytes, offset)| {
            let relative = bytes.try_into().map(u32::from_le_bytes).unwrap_or_default();
            let distance = relative.wrapping_add(base).wrapping_add(offset + phase as u32);
            near | u32::from(distance < span)
        });
        near != 0
    })
}

/// Whether a function that starts so has an entry for ftrace, and so can be probed: a nop of five bytes that was
/// the call of `__fentry__`, or a call again while somebody traces it. With `CONFIG_X86_KERNEL_IBT` it stands
/// behind an `endbr64`, or behind the nop that a sealed one has become.
///
/// `is_tracer` says whether a call leads to a trampoline or to ftrace itself, not to another function.
pub fn has_ftrace_entry(entry: &[u8], address: u64, is_tracer: impl Fn(u64) -> bool) -> bool {
    // P6_NOP5, and K8_NOP5_ATOMIC before 5.13 on the first CPUs of 64 bits.
    const NOPS: [[u8; 5]; 2] = [[0x0f, 0x1f, 0x44, 0x00, 0x00], [0x66, 0x66, 0x66, 0x66, 0x90]];
    let mark = match entry.first_chunk() {
        // endbr64, and what it is sealed to from 6.2 on and on 7.3; each may have a breakpoint on it.
        Some(
            [0xf3 | INT3, 0x0f, 0x1e, 0xfa] | [0x66 | INT3, 0x0f, 0x1f, 0x00] | [0x0f | INT3, 0x1f, 0x40, _],
        ) => 4,
        _ => 0,
    };
    let Some(&[first, ref rest @ ..]) = entry[mark..].first_chunk::<5>() else { return false };
    let relative = i32::from_le_bytes(*rest);
    let next = address.wrapping_add(mark as u64 + 5);
    match first {
        // A jump to a trampoline that calls the function itself, on 7.x (`DYNAMIC_FTRACE_WITH_JMP`).
        CALL | JUMP_NEAR => is_tracer(next.wrapping_add_signed(i64::from(relative))),
        // While it is being patched.
        INT3 => NOPS.iter().any(|nop| nop[1..] == *rest),
        _ => NOPS.iter().any(|nop| nop[0] == first && nop[1..] == *rest),
    }
}
