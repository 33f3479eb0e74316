//! The straight run of instructions before a call: from where a kprobe can be a jump instead of a trap, and where the
//! call's arguments are there.
//!
//! The kernel makes a jump of a kprobe (arch/x86/kernel/kprobes/opt.c) where five bytes of whole instructions follow that
//! can run elsewhere and into which nothing jumps. That is its business: where it declines, the probe stays a trap.
//! What must be right here is that whoever comes to the call has passed the probe, and what the registers hold.

use std::collections::BTreeSet;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind,
    Register,
};
use iotrace_common::site::{self, Value};

use super::arch_x86_64::{JUMP, REGISTERS};
use super::landing::Landings;

/// A function's instructions, and every place in it that is reached otherwise than from the one before.
pub struct Body {
    instructions: Vec<Instruction>,
    landings: BTreeSet<u64>,
    keys: BTreeSet<u64>,
    may_fault: bool,
}

/// What was found at a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where a kprobe before the call may be a jump, and where the arguments are there.
    pub before: Option<(u64, [Value; 2])>,
    /// Where each argument still is behind the call.
    pub kept: [Option<Value>; 2],
    /// Whether only the call leads to the instruction behind it.
    pub returns_alone: bool,
}

impl Body {
    /// Decodes a function. `others` are the parts that the compiler has split off, or has split this one off from.
    /// `None` if something there is not what it seems: patched by a tracer, or with jumps that cannot be told.
    pub fn read(
        function: (u64, &[u8]),
        others: &[(u64, &[u8])],
        landings: &Landings,
        is_detour: impl Fn(u64) -> bool,
        is_thunk: impl Fn(u64) -> bool,
    ) -> Option<Body> {
        let (start, bytes) = function;
        let end = start + bytes.len() as u64;
        let instructions = decode(start, bytes, &is_detour, &is_thunk)?;
        let mut reached: BTreeSet<u64> = landings.within(start, end).iter().copied().collect();
        reached.extend(targets(&instructions));
        for &(start, bytes) in others {
            reached.extend(targets(&decode(start, bytes, &is_detour, &is_thunk)?));
        }
        // Behind a jump or a return comes filler, unless something leads there: then it is a breakpoint.
        if instructions.iter().any(|found| found.code() == Code::Int3 && reached.contains(&found.ip())) {
            return None;
        }
        let keys = instructions.iter().map(Instruction::ip).filter(|&at| landings.is_key(at)).collect();
        Some(Body { instructions, landings: reached, keys, may_fault: landings.may_fault(start, end) })
    }

    /// Looks back from the call at this address for arguments at two positions. `reads` tells that what they lead to
    /// is read at the probe: then nothing may be written between it and the call.
    pub fn run(&self, call: u64, arguments: [u8; 2], reads: bool) -> Option<Run> {
        let place = self.instructions.binary_search_by_key(&call, Instruction::ip).ok()?;
        let next = self.instructions[place].next_ip();
        let mut found = Run { before: None, kept: [None; 2], returns_alone: !self.landings.contains(&next) };
        let mut back = Back::new(arguments);
        for instruction in self.instructions[..place].iter().rev() {
            if self.landings.contains(&instruction.next_ip())
                || self.keys.contains(&instruction.ip())
                || !is_plain(instruction)
                || !back.step(instruction)
            {
                break;
            }
            for (kept, value) in found.kept.iter_mut().zip(back.kept()) {
                *kept = kept.or(value);
            }
            let at = instruction.ip();
            if found.before.is_none()
                && !self.may_fault
                && call - at >= JUMP as u64
                && !(reads && back.writes)
            {
                found.before = back.values().map(|values| (at, values));
            }
        }
        Some(found)
    }
}

/// Decodes from the start to the end. `None` if a tracer has changed something, or if it has an indirect jump.
fn decode(
    start: u64,
    bytes: &[u8],
    is_detour: impl Fn(u64) -> bool,
    is_thunk: impl Fn(u64) -> bool,
) -> Option<Vec<Instruction>> {
    let mut instructions: Vec<Instruction> = Vec::with_capacity(bytes.len() / 4);
    for instruction in &mut Decoder::with_ip(64, bytes, start, DecoderOptions::NONE) {
        let falls = instructions.last().is_none_or(|before| {
            !matches!(
                before.flow_control(),
                FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::Interrupt
            )
        });
        match instruction.flow_control() {
            _ if instruction.is_invalid() => return None,
            // The last instruction of a function may be cut off by nothing: functions end where the next begins.
            FlowControl::Interrupt if instruction.code() == Code::Int3 && falls => return None,
            FlowControl::IndirectBranch => return None,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let to = instruction.near_branch_target();
                if is_detour(to) || is_thunk(to) {
                    return None;
                }
            }
            _ => {}
        }
        instructions.push(instruction);
    }
    Some(instructions)
}

fn targets(instructions: &[Instruction]) -> impl Iterator<Item = u64> {
    let branches = instructions.iter().filter(|found| {
        found.op0_kind() == OpKind::NearBranch64 && found.flow_control() != FlowControl::Call
    });
    branches.map(Instruction::near_branch_target)
}

/// Whether it does nothing but compute, and the kernel can run it elsewhere (`can_boost`, arch/x86/kernel/kprobes/core.c,
/// 5.10 to 7.3). Nops are left out: a static call may take their place.
fn is_plain(instruction: &Instruction) -> bool {
    use Mnemonic::{Add, And, Cmp, Lea, Mov, Movsx, Movsxd, Movzx, Or, Sub, Test, Xor};
    let known = matches!(
        instruction.mnemonic(),
        Mov | Lea | Xor | Add | Sub | And | Or | Cmp | Test | Movzx | Movsx | Movsxd
    );
    let operands = || (0..instruction.op_count()).map(|number| (number, instruction.op_kind(number)));
    let general = || {
        operands().all(|(number, kind)| kind != OpKind::Register || instruction.op_register(number).is_gpr())
    };
    // `test` with a constant is in a group that cannot be boosted; a 32-bit address has a prefix that forbids it.
    let constant = instruction.mnemonic() == Test
        && operands().any(|(_, kind)| !matches!(kind, OpKind::Register | OpKind::Memory));
    let base = instruction.memory_base();
    let short = base != Register::None && base != Register::RIP && base.size() != 8;
    let prefixed = instruction.has_lock_prefix()
        || instruction.has_rep_prefix()
        || instruction.has_repne_prefix()
        || instruction.segment_prefix() != Register::None;
    known && general() && !constant && !short && !prefixed
}

/// Where a number is.
#[derive(Clone, Copy)]
enum Place {
    Register { base: Register, add: i64, narrow: bool },
    Memory { base: Register, add: i64, narrow: bool },
    Constant(i64),
}

/// The way back from a call.
struct Back {
    arguments: [Place; 2],
    /// Registers that were written between here and the call.
    written: Vec<Register>,
    /// Whether memory was.
    writes: bool,
    info: InstructionInfoFactory,
}

impl Back {
    fn new(arguments: [u8; 2]) -> Back {
        let arguments = arguments.map(|position| {
            let number = REGISTERS[usize::from(position).min(REGISTERS.len() - 1)];
            Place::Register { base: register(number), add: 0, narrow: false }
        });
        Back { arguments, written: Vec::new(), writes: false, info: InstructionInfoFactory::new() }
    }

    /// Goes back over an instruction; `false` if it cannot be told where the arguments were before it.
    fn step(&mut self, instruction: &Instruction) -> bool {
        let info = self.info.info(instruction);
        let is_write = |access| {
            use iced_x86::OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
            matches!(access, Write | ReadWrite | CondWrite | ReadCondWrite)
        };
        let written: Vec<Register> = info
            .used_registers()
            .iter()
            .filter(|used| is_write(used.access()))
            .map(|used| used.register().full_register())
            .collect();
        let writes = info.used_memory().iter().any(|used| is_write(used.access()));
        if written.contains(&Register::RSP) {
            return false;
        }
        for place in &mut self.arguments {
            match *place {
                Place::Register { base, .. } | Place::Memory { base, .. } if written.contains(&base) => {
                    let Some(before) = before(instruction, *place) else { return false };
                    *place = before;
                }
                // What is written may be just this.
                Place::Memory { .. } if writes => return false,
                _ => {}
            }
        }
        self.written.extend(written);
        self.writes |= writes;
        true
    }

    /// The arguments, if each can be written down.
    fn values(&self) -> Option<[Value; 2]> {
        let [first, second] = self.arguments.map(value);
        Some([first?, second?])
    }

    /// The arguments that are where the callee leaves them alone: in registers that it must save, on this stack frame.
    fn kept(&self) -> [Option<Value>; 2] {
        use Register::{R12, R13, R14, R15, RBP, RBX, RSP};
        self.arguments.map(|place| {
            let kept = match place {
                Place::Register { base, .. } => {
                    [RBX, RBP, RSP, R12, R13, R14, R15].contains(&base) && !self.written.contains(&base)
                }
                Place::Memory { base, .. } => base == RSP && !self.writes,
                Place::Constant(_) => true,
            };
            value(place).filter(|_| kept)
        })
    }
}

/// Where a number was before the instruction that wrote its register.
fn before(instruction: &Instruction, place: Place) -> Option<Place> {
    let to = (instruction.op0_kind() == OpKind::Register).then(|| instruction.op0_register())?;
    let wide = to.size() == 8;
    if to.size() < 4 {
        return None;
    }
    let from = (instruction.op1_kind() == OpKind::Register).then(|| instruction.op1_register());
    // A plain `disp(base)`.
    let memory = (instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
        && instruction.memory_base().is_gpr64())
    .then(|| (instruction.memory_base(), instruction.memory_displacement64() as i64));
    let constant = matches!(
        instruction.op1_kind(),
        OpKind::Immediate8
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32
            | OpKind::Immediate32to64
    )
    .then(|| instruction.immediate(1) as i64);
    match (instruction.mnemonic(), place) {
        (Mnemonic::Mov, Place::Register { add, narrow, .. }) => {
            let exact = wide || add == 0;
            match (from, memory, constant) {
                (Some(from), ..) if exact => {
                    Some(Place::Register { base: from.full_register(), add, narrow: narrow || !wide })
                }
                (_, Some((base, at)), _) if add == 0 => {
                    Some(Place::Memory { base, add: at, narrow: narrow || !wide })
                }
                (_, _, Some(constant)) => Some(Place::Constant(constant.checked_add(add)?)),
                _ => None,
            }
        }
        (Mnemonic::Mov, Place::Memory { add, narrow, .. }) if wide => {
            Some(Place::Memory { base: from?.full_register(), add, narrow })
        }
        (Mnemonic::Xor, Place::Register { add, .. }) if from == Some(to) => Some(Place::Constant(add)),
        (Mnemonic::Lea, Place::Register { add, narrow, .. }) if wide => {
            let (base, at) = memory?;
            Some(Place::Register { base, add: add.checked_add(at)?, narrow })
        }
        (Mnemonic::Lea, Place::Memory { add, narrow, .. }) if wide => {
            let (base, at) = memory?;
            Some(Place::Memory { base, add: add.checked_add(at)?, narrow })
        }
        _ => None,
    }
}

fn value(place: Place) -> Option<Value> {
    let fits = |add: i64| (-Value::MOST..=Value::MOST).contains(&add).then_some(add as i16);
    Some(match place {
        Place::Register { base, add, narrow } => {
            Value { mode: site::REGISTER, narrow, base: base.number() as u8, add: fits(add)? }
        }
        Place::Memory { base, add, narrow } => {
            Value { mode: site::MEMORY, narrow, base: base.number() as u8, add: fits(add)? }
        }
        Place::Constant(number) => Value {
            mode: site::CONSTANT,
            narrow: false,
            base: 0,
            add: fits(number).filter(|&number| number >= 0)?,
        },
    })
}

fn register(number: u8) -> Register {
    use Register::{R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
    [RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15][usize::from(number & 15)]
}

#[cfg(test)]
mod tests;
